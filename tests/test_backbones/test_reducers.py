"""Reducers as values: lists of them, of one kind or of several."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clustr_mm.analysis.cost import count_macs
from clustr_mm.backbones import (
    HVT,
    DynamicViT,
    EViT,
    ThinViT,
    TokenPoolingDeiT,
    ToMe,
)
from clustr_mm.layers.block import Block
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.visualization.follow import Clustered, Selected, follow
from tests.tiny_models import (
    CASES,
    EARLY_AND_LATE,
    SMALL,
    build,
    clustr,
    images,
)
from tests.torch_features import one_graph


def at(blocks, **reducer):
    return [dict(reducer, block=block) for block in blocks]


# A preset, and the list that it stands for.
PRESETS = {
    'evit': (
        EViT,
        dict(keep=0.6),
        at([1, 3, 4], type='AttentiveTokens', keep=0.6),
        {},
    ),
    'evit-drop': (
        EViT,
        dict(keep=[1, 0.5, 1, 1, 0.8, 1], fuse=False),
        [
            dict(type='AttentiveTokens', block=1, keep=0.5, fuse=False),
            dict(type='AttentiveTokens', block=4, keep=0.8, fuse=False),
        ],
        {},
    ),
    'dynamicvit': (
        DynamicViT,
        dict(keep=0.5, reduce_at=[2, 4]),
        [
            dict(type='PredictedTokens', block=2, keep=0.5),
            dict(type='PredictedTokens', block=4, keep=0.25),
        ],
        {},
    ),
    'hvt': (
        HVT,
        dict(num_stages=2),
        [
            dict(type='TokenPool', block=0),
            dict(type='TokenPool', block=3, shape=[31]),
        ],
        dict(with_cls_token=False, pool_norm=False, out_type='avg_featmap'),
    ),
    'token-pooling': (
        TokenPoolingDeiT,
        dict(keep=[64, 32, 32, 16, 16, 16], carry=True),
        [
            dict(
                type='PooledTokens',
                block=block,
                keep=keep,
                clustering='kmedoids',
                weighted=True,
            )
            for block, keep in ((1, 0.5), (3, 0.25))
        ],
        dict(carry=True),
    ),
    'conv': (
        TokenPoolingDeiT,
        dict(method='conv', reduce_at=[1]),
        [
            dict(
                type='TokenPool',
                block=1,
                op='conv',
                dims=2,
                kernel_size=2,
                with_pos_embed=False,
            )
        ],
        {},
    ),
    'tome': (
        ToMe,
        dict(merge=8),
        at(range(6), type='MergedTokens', merge=0.125),
        dict(carry=True),
    ),
}


@pytest.mark.parametrize('name', PRESETS)
def test_presets_are_lists(name):
    model, options, reducers, trunk = PRESETS[name]
    preset = model(**SMALL, **options)
    listed = ThinViT(**SMALL, reducers=reducers, **trunk)
    for parameter in preset.parameters():
        nn.init.normal_(parameter, std=0.2)
    assert list(listed.state_dict()) == list(preset.state_dict())
    listed.load_state_dict(preset.state_dict())
    with torch.no_grad():
        for img in (images(), images(1, 24, 40)):
            expected = preset.eval()(img)[0]
            assert torch.equal(listed.eval()(img)[0], expected)


def mixed(reducers=EARLY_AND_LATE, **options):
    """A network of several kinds, with all weights random."""
    torch.manual_seed(0)
    model = ThinViT(**SMALL, reducers=reducers, **options)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.eval()


@torch.no_grad()
def test_two_kinds_by_hand():
    """Half a network of EViT's goes on as one of ToMe's.

    After EViT's blocks, a trunk of the tokens' number takes what is left
    for the patches of an image.
    """
    model = mixed(out_type='raw', carry=True)
    x, trail = model.embed(images(), track=True)
    for i in range(3):
        x = model.run_block(i, x, trail)
    kept = math.ceil(0.6 * 64)
    assert x.shape == (2, 1 + kept + 1, 48)
    sizes = trail.sizes(x[:, 1:])
    assert sizes.sum(1).tolist() == [64, 64]
    assert (sizes[:, :kept] == 1).all()
    # Attention counts the fused token, then ToMe averages by sizes.
    bias = F.pad(sizes.log(), (1, 0))
    block = model.blocks[3]
    attended, keys = block.attend(x, statistic='keys', bias=bias)
    found = model.run_block(3, x, trail)
    from clustr_mm.backbones.tome import match

    labels = match(keys[:, 1:], 6)
    for b in range(2):
        merged = [attended[b, 0]]
        for number in range(kept + 1 - 6):
            members = labels[b] == number
            weight = sizes[b, members] / sizes[b, members].sum()
            merged.append(weight @ attended[b, 1:][members])
        expected = block.feed(torch.stack(merged)[None])[0]
        torch.testing.assert_close(found[b], expected, rtol=1e-4, atol=1e-4)
    assert trail.reports == ['fuse', 'merge']
    assert trail.sizes(found[:, 1:]).sum(1).tolist() == [64, 64]


@pytest.mark.parametrize('carry', [True, False])
@pytest.mark.parametrize('size', [(32, 32), (40, 24), (4, 4), (1, 1), (3, 70)])
@torch.no_grad()
def test_map_of_two_kinds(carry, size):
    model = mixed(out_type='featmap', carry=carry, detail=False)
    (fmap,), trail = model.trace(images(2, *size))
    grid = tuple(math.ceil(side / 4) for side in size)
    assert fmap.shape == (2, 48, *grid)
    assert torch.equal(model(images(2, *size))[0], fmap)
    owners = trail.owners(2)
    for b in range(2):
        # Patches of a token share its value, others do not.
        values = fmap[b].flatten(1).mT
        same = (values[:, None] == values[None]).all(-1)
        assert torch.equal(same, owners[b][:, None] == owners[b])


def test_two_kinds_are_drawn():
    stages = follow(mixed(carry=True), images(1))
    assert [type(stage) for stage in stages] == [
        Selected,
        Clustered,
        Clustered,
    ]
    assert [stage.title for stage in stages] == [
        'block 2: 40 of 64 tokens',
        'block 4: 34 of 64 tokens',
        'block 5: 28 of 64 tokens',
    ]
    assert (stages[0].fused > 0).sum() == 64 - 39


ONE_BLOCK = [
    dict(type='PredictedTokens', block=2, keep=0.75),
    dict(type='AttentiveTokens', block=2, keep=0.5, fuse=False),
    dict(type='PooledTokens', block=4, keep=0.1, clustering='kmeans'),
]


@torch.no_grad()
def test_places_of_a_block():
    """Before block 2, and between its halves; each sees what is left."""
    model = mixed(ONE_BLOCK, out_type='raw')
    x, trail = model.embed(images(), track=True)
    lengths = []
    for i in range(6):
        x = model.run_block(i, x, trail)
        lengths.append(x.shape[1] - 1)
    assert lengths == [64, 64, 24, 24, 6, 6]
    assert trail.reports == ['select', 'select', 'merge']
    # Block 2 attends to 48 tokens, and its FFN sees 24.
    seen = []
    block = model.blocks[2]
    block.attn.register_forward_hook(lambda *args: seen.append(args[1][0]))
    block.mlp.register_forward_hook(lambda *args: seen.append(args[1][0]))
    (raw,) = model(images())
    assert [tokens.shape[1] - 1 for tokens in seen] == [48, 24]
    torch.testing.assert_close(raw, model.norm(x))
    model.out_type = 'featmap'
    (fmap,) = model(images(1, 24, 40))
    assert fmap.shape == (1, 48, 6, 10)


def test_between_and_after_one_block():
    """A pool after a block whose reducer had nothing to do."""
    reducers = [
        dict(type='AttentiveTokens', block=1, keep=1.0),
        dict(type='TokenPool', block=1),
    ]
    model = mixed(reducers, out_type='featmap')
    alone = mixed(reducers[1:], out_type='featmap')
    with torch.no_grad():
        assert torch.equal(model(images())[0], alone(images())[0])


def test_presets_take_more_reducers():
    more = [dict(type='MergedTokens', block=4, merge=0.25)]
    model = EViT(**SMALL, keep=0.5, reduce_at=[1], reducers=more)
    assert [type(r).__name__ for r in model.reducers] == [
        'AttentiveTokens',
        'MergedTokens',
    ]
    assert model.needs_trail
    assert model(images())[0].shape == (2, 48)
    with pytest.raises(ValueError, match="two that act 'between' at block 4"):
        EViT(**SMALL, keep=0.5, reduce_at=[4], reducers=more)


def test_a_dense_model_is_thinned_and_back():
    model, img = build('dense', out_type='raw'), images()
    dense = model(img)[0]
    weights = model.state_dict()
    model.place_reducers(EARLY_AND_LATE)
    assert model(img)[0].shape[1] == 29
    assert list(model.state_dict()) == list(weights)
    model.place_reducers([])
    assert torch.equal(model(img)[0], dense)


def test_training_behind_another_rule():
    """DynamicViT decides about what EViT left, in training and in test."""
    reducers = [
        dict(type='AttentiveTokens', block=1, keep=0.5),
        dict(type='PredictedTokens', block=3, keep=0.25),
    ]
    model = mixed(reducers, out_type='featmap').train()
    x, trail = model.run(images(), track=True)
    assert x.shape[1] == 1 + 33
    assert [stays.shape for stays in trail.decisions] == [(2, 33)]
    (fmap,) = model(images())
    fmap.square().mean().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    assert model.run(images())[0].shape[1] == 1 + 16


@pytest.mark.parametrize('out_type', ['cls_token', 'featmap'])
def test_nothing_thins_behind_decisions_in_training(out_type):
    reducers = [
        dict(type='PredictedTokens', block=1, keep=0.5),
        dict(type='MergedTokens', block=3, merge=0.25),
    ]
    model = mixed(reducers, out_type=out_type)
    assert model.run(images())[0].shape[1] == 1 + 16
    with pytest.raises(ValueError, match='let the one that decides act last'):
        model.train()(images())


@pytest.mark.parametrize('out_type', ['cls_token', 'featmap'])
@pytest.mark.parametrize(
    ('kinds', 'message'),
    [
        (['AttentiveTokens', 'TokenPool'], 'no order left to be pooled in'),
        (['TokenPool', 'AttentiveTokens'], 'cannot be selected or merged'),
    ],
)
def test_pooling_and_selection_do_not_go_together(kinds, message, out_type):
    options = {'AttentiveTokens': dict(keep=0.5), 'TokenPool': {}}
    reducers = [
        dict(options[kind], type=kind, block=block)
        for block, kind in enumerate(kinds)
    ]
    model = mixed(reducers, out_type=out_type)
    with pytest.raises(ValueError, match=message):
        model(images())


@pytest.mark.parametrize(
    ('reducers', 'message'),
    [
        (at([6], type='MergedTokens', merge=0.1), 'numbered 0 to 5'),
        (at([-1], type='MergedTokens', merge=0.1), 'numbered 0 to 5'),
        (at([2, 2], type='MergedTokens', merge=0.1), "two that act 'between'"),
        (at([1], type='MergedTokens', merge=1.5), 'merge is a share'),
        (at([1], type='AttentiveTokens', keep=-1), 'keep is a share'),
        (at([1], type='PredictedTokens', keep=2), 'keep is a share'),
        (at([1], type='PooledTokens', keep=2), 'keep is a share'),
        (at([1], type='PooledTokens', keep=0.5, ranking='x'), 'ranking must'),
        (at([1], type='PooledTokens', keep=1, clustering='x'), 'clustering'),
        (at([1], type='PooledTokens', keep=0.5, iters=0), 'iters must be'),
        ([dict(type='SimpleFPN', in_channels=4)], "'SimpleFPN', which is no"),
        ([dict(type='Missing', block=1)], 'custom_imports'),
        ([dict(block=1)], 'None, which is no Reducer'),
    ],
)
def test_bad_values(reducers, message):
    with pytest.raises(ValueError, match=message):
        ThinViT(**SMALL, reducers=reducers)


@pytest.mark.parametrize(
    ('reducer', 'message'),
    [
        (dict(type='MergedTokens', merge=0.1), 'block'),
        (dict(type='MergedTokens', block='1', merge=0.1), 'block of Merged'),
        (dict(type='MergedTokens', bloc=1, merge=0), 'did you mean block'),
        (dict(type='AttentiveTokens', block=1, keep='all'), 'keep of Atten'),
        (dict(type='PredictedTokens', block=1, keep='all'), 'keep of Predic'),
        (dict(type='PooledTokens', block=1, keep='all'), 'keep of Pooled'),
        (dict(type='TokenPool', block=1, dims='2'), 'dims of TokenPool'),
    ],
)
def test_bad_types(reducer, message):
    with pytest.raises(TypeError, match=message):
        ThinViT(**SMALL, reducers=[reducer])


def test_class_token_is_needed():
    reducers = at([1], type='AttentiveTokens', keep=0.5)
    with pytest.raises(ValueError, match='needs the attention of a class'):
        ThinViT(
            **SMALL,
            reducers=reducers,
            with_cls_token=False,
            out_type='featmap',
        )


class Aside(Reducer):
    place = 'beside'

    def forward(self, x, trail, statistic):
        return x


def test_unknown_place():
    with pytest.raises(ValueError, match="of Aside must be one of .*'beside'"):
        ThinViT(**SMALL, reducers=[Aside(block=1)])


# What wraps or watches a block.
EACH = sorted(CASES)


def watched(model):
    """Which blocks were called, and the tokens that each handed on."""
    calls = []
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(
            lambda _, args, out, i=i: calls.append((i, out))
        )
    return calls


@pytest.mark.parametrize('name', EACH)
@pytest.mark.parametrize('how', ['eval', 'train', 'with_cp', 'trace'])
def test_hooks_see_each_block_once(name, how):
    """Its output is what the next one, or what thins behind it, gets."""
    model = build(name, out_type='raw', with_cp=how == 'with_cp')
    model.train(how in ('train', 'with_cp'))
    calls = watched(model)
    img = images()
    outs = model.trace(img)[0] if how == 'trace' else model(img)
    assert [i for i, _ in calls] == list(range(6))
    last = calls[-1][1]
    assert torch.equal(outs[0], model.norm(last))
    if how != 'trace':
        outs[0].sum().backward()
        # Recomputed are the halves, not what watches the whole.
        assert len(calls) == 6


@pytest.mark.parametrize('name', EACH)
@torch.no_grad()
def test_hooks_change_what_goes_on(name):
    model = build(name, out_type='raw')
    expected = model(images())[0]
    hook = model.blocks[2].register_forward_hook(lambda *args: 2 * args[2])
    assert not torch.allclose(model(images())[0], expected)
    hook.remove()
    assert torch.equal(model(images())[0], expected)


def test_the_trail_is_kept_if_somebody_asks_for_it():
    """By what it costs in launches."""
    for name, expected in ('kmeans', False), ('evit', False), ('tome', True):
        assert build(name).needs_trail == expected
        assert build(name, out_type='featmap').needs_trail


@pytest.mark.parametrize('name', ['kmeans', 'kmedoids', 'tome'])
def test_products_of_reducers_count_as_clustering(name):
    kinds = count_macs(build(name), images()).by_kind()
    assert kinds['clustering'] > 0
    assert kinds['rest'] == 0


@one_graph
@pytest.mark.parametrize('name', ['dense', 'evit', 'hvt', 'dynamicvit'])
def test_blocks_are_compiled_whole(name):
    model, img = build(name, out_type='featmap'), images()
    with torch.no_grad():
        expected = model(img)[0]
        for i in range(6):
            # Only the capture is of interest, not the code.
            model.blocks[i] = torch.compile(
                model.blocks[i], backend='eager', fullgraph=True
            )
        torch.testing.assert_close(model(img)[0], expected)


def recorded_sizes(model, img):
    """Numbers of elements of what the backward pass keeps."""
    kept = []

    def pack(x):
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        model(img)
    return kept


@pytest.mark.parametrize(
    'make',
    [
        partial(build, 'evit'),
        partial(clustr, (2, 1), reduction=(4, 1), out_indices=[1]),
    ],
    ids=['evit', 'clustr'],
)
@pytest.mark.parametrize('training', [True, False])
def test_blocks_are_recomputed_where_there_are_gradients(make, training):
    """In whichever mode the model is; and without gradients never."""
    img = images(2, 64, 64)
    plain = recorded_sizes(make().train(training), img)
    frugal = make(with_cp=True).train(training)
    assert sum(recorded_sizes(frugal, img)) < 0.5 * sum(plain)
    with torch.no_grad():
        assert recorded_sizes(frugal, img) == []


def test_trail_is_told_once_by_recomputed_blocks():
    model = mixed(with_cp=True, carry=True, out_type='featmap').train()
    (fmap,), trail = model.trace(images())
    fmap.sum().backward()
    assert trail.reports == ['fuse', 'merge', 'merge']
    assert len(trail.steps) == 3


def test_registered_by_name():
    for name in (
        'AttentiveTokens',
        'MergedTokens',
        'PooledTokens',
        'PredictedTokens',
        'TokenPool',
    ):
        assert issubclass(MODELS.get(name), Reducer)


def test_block_alone():
    block = Block(48, 3, 96)
    x = torch.randn(2, 5, 48)
    plain = block.feed(block.attend(x)[0])
    assert torch.equal(block(x), plain)
    seen = []

    def between(x, statistic):
        seen.append(statistic)
        return x[:, :3]

    assert block(x, between, statistic='column_sum').shape == (2, 3, 48)
    assert seen[0].shape == (2, 5)
