import pytest
import torch
import torch.nn.functional as F

from clustr_mm.backbones.token_pooling import KEEP as LEVELS
from clustr_mm.backbones.token_pooling import TokenPoolingDeiT
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from clustr_mm.tokens.provenance import Trail
from tests.test_backbones.vit_cases import (
    KEEP,
    SMALL,
    build,
    giga_macs,
    images,
    on_meta,
)

# Tables 3 to 5, PoWER-BERT.
COSTS = {
    'deit-small': ['4.3', '2.9', '2.5', '2.3', '2.1', '1.5', '1.2', '1.0'],
    'deit-e318': ['3.0', '2.1', '1.8', '1.6', '1.5', '1.1', '0.89', '0.75'],
    'deit-e252': ['2.0', '1.4', '1.2', '1.1', '0.96', '0.70', '0.55', '0.46'],
}


@pytest.mark.parametrize('level', range(8))
@pytest.mark.parametrize('arch', COSTS)
def test_costs(arch, level):
    model = on_meta(TokenPoolingDeiT, arch, level, method='significance')
    giga = giga_macs(model) + model.embed_dims * 1000 / 1e9
    printed = COSTS[arch][level]
    digits = len(printed.split('.')[1])
    assert f'{giga:.{digits}f}' == printed


def test_all_levels_are_there():
    assert [len(levels) for levels in LEVELS.values()] == [8, 8, 8]
    assert all(len(keep) == 12 for table in LEVELS.values() for keep in table)


@pytest.mark.parametrize(
    'method', ['kmeans', 'kmedoids', 'significance', 'importance', 'random']
)
def test_keeps_as_many_as_asked(method):
    model = build('power', method=method, qk_norm=None, out_type='raw')
    model.out_indices = list(range(6))
    with torch.no_grad():
        lengths = [out.shape[1] - 1 for out in model(images())]
    assert lengths == KEEP


def test_in_proportion_for_other_sizes():
    model = build('kmedoids', out_type='raw', out_indices=range(6))
    with torch.no_grad():
        outs = model(images(1, 64, 64))
    assert [out.shape[1] - 1 for out in outs] == [4 * kept for kept in KEEP]


def test_a_later_block_has_no_more_than_an_earlier_one():
    """As in the paper's lists: at most so many."""
    kwargs = {'keep': [60, 20, 30, 5, 9, 2], 'out_indices': range(6)}
    outs = build('wkmedoids', out_type='raw', **kwargs)(images())
    assert [out.shape[1] - 1 for out in outs] == [60, 20, 20, 5, 5, 2]


def test_class_token_alone():
    kwargs = {'keep': [9, 0, 0, 3, 0, 0], 'out_indices': [1, 5]}
    for out in build('kmeans', out_type='raw', **kwargs)(images()):
        assert out.shape == (2, 1, 48)
    for out in build('kmeans', out_type='featmap', **kwargs)(images()):
        assert out.shape == (2, 48, 8, 8)
        assert len(out[0].flatten(1).unique(dim=1).mT) <= 9


def test_column_sums_are_the_attention_received():
    attn = build('power', qk_norm=None).blocks[0].attn
    x = torch.randn(2, 10, 48)
    q, k, v = attn.qkv(x).unflatten(2, (3, 3, 16)).permute(2, 0, 3, 1, 4)
    probs = (q @ k.mT / 4).softmax(-1)
    out, answer = attn(x, asks='column_sum')
    torch.testing.assert_close(answer, probs.sum((1, 2)))
    torch.testing.assert_close(
        out, attn.proj((probs @ v).mT.permute(0, 3, 1, 2).flatten(2))
    )


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('method', ['kmeans', 'kmedoids'])
def test_clusters(method, weighted):
    """Clusters start from what is most significant; see `test_kmeans`."""
    model = build('kmeans', method=method, weighted=weighted)
    reducer, x = model.reducers[0], torch.randn(2, 64, 48)
    answer, trail = torch.rand(2, 64), Trail((8, 8))
    out = reducer(x, trail, answer)
    init = answer.topk(40).indices
    weight = answer if weighted else None
    if method == 'kmeans':
        labels, centers = kmeans(x, init, weight)
    else:
        labels, medoids = kmedoids(x, init, weight)
        centers = torch.stack([x[b, medoids[b]] for b in range(2)])
    assert torch.equal(out, centers)
    assert torch.equal(trail.owners(2), labels)


def test_selection_is_by_significance():
    reducer = build('power').reducers[0]
    x, answer = torch.randn(2, 64, 48), torch.rand(2, 64)
    out = reducer(x, Trail((8, 8)), answer)
    for b in range(2):
        assert torch.equal(
            out[b], x[b, answer[b].argsort(descending=True)[:40]]
        )


def test_importance_is_drawn_in_proportion():
    reducer = build('importance').reducers[0].train()
    reducer.keep = 1 / 4
    answer = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(8000, 4)
    x = torch.eye(4).expand(8000, 4, 4)
    drawn = reducer(x, Trail((2, 2)), answer)[:, 0].mean(0)
    torch.testing.assert_close(
        drawn, torch.tensor([0.4, 0.3, 0.2, 0.1]), rtol=0, atol=0.03
    )


def test_random_is_random_in_training_only():
    reducer = build('random').reducers[0]
    x = torch.randn(1, 64, 48).expand(2, -1, -1)
    first, second = reducer(x, Trail((8, 8)), None)
    assert torch.equal(first, second)
    first, second = reducer.train()(x, Trail((8, 8)), None)
    assert not torch.equal(first, second)


def test_carry_preserves_attention():
    """A cluster of equal tokens attends and is attended to like them all."""
    model = build('kmeans', carry=True, keep=[64, 64, 64, 64, 64, 3])
    attn = model.blocks[0].attn
    sizes = torch.tensor([[1.0, 5.0, 2.0, 3.0]])
    x = torch.randn(1, 4, 48)
    many = x.repeat_interleave(sizes[0].long(), 1)
    out, _ = attn(x, bias=sizes.log())
    alone, _ = attn(many)
    torch.testing.assert_close(
        out.repeat_interleave(sizes[0].long(), 1), alone, rtol=1e-4, atol=1e-5
    )
    out, answer = attn(x, asks='column_sum', bias=sizes.log())
    torch.testing.assert_close(
        out.repeat_interleave(sizes[0].long(), 1), alone, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize('carry', [True, False])
def test_equal_patches_may_be_clustered_only_if_their_number_is_carried(carry):
    model = build('kmeans', carry=carry, keep=[1] * 6)
    dense = build('kmeans', keep=[64] * 6)
    for each in (model, dense):
        each.pos_embed.data[:, 1:] = 0
    img = images(2, 4, 4).tile(8, 8)
    with torch.no_grad():
        out, expected = model(img)[0], dense(img)[0]
    assert torch.allclose(out, expected, rtol=1e-3, atol=1e-3) == carry


@pytest.mark.parametrize('alpha', ['fixed', 'learned'])
def test_normalised_queries_and_keys(alpha):
    attn = build('power', qk_norm=alpha).blocks[0].attn
    x = torch.randn(2, 10, 48)
    q, k, v = attn.qkv(x).unflatten(2, (3, 3, 16)).permute(2, 0, 3, 1, 4)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    scale = attn.alpha if alpha == 'learned' else 1
    out = (scale * q @ k.mT).softmax(-1) @ v
    out = attn.proj(out.transpose(1, 2).flatten(2))
    for asks in (None, 'column_sum', 'class_row'):
        torch.testing.assert_close(
            attn(x, asks=asks)[0], out, rtol=1e-4, atol=1e-5
        )


def test_convolution():
    """2 x 2 with stride 2, on the map, the class token aside."""
    model = build('conv', reduce_at=[0], out_indices=[0], out_type='raw')
    with torch.no_grad():
        x, _ = model.embed(images(), track=False)
        x = model.blocks[0](x)
        fmap = x[:, 1:].mT.unflatten(2, (8, 8))
        conv = model.reducers[0].pool
        fmap = F.conv2d(fmap, conv.weight, conv.bias, stride=2)
        expected = torch.cat([x[:, :1], fmap.flatten(2).mT], 1)
        torch.testing.assert_close(model(images())[0], expected)


def test_three_convolutions_leave_a_token():
    model = on_meta(
        TokenPoolingDeiT, method='conv', reduce_at=[1, 4, 7], out_type='raw'
    )
    out = model(torch.empty(1, 3, 224, 224, device='meta'))[0]
    assert out.shape[1] == 2


def test_an_image_of_one_patch_that_leaves():
    """Later blocks ask for the attention of nothing."""
    model = build('power', with_cls_token=False, out_type='featmap')
    (out,) = model(images(height=1, width=1))
    assert out.shape == (2, 48, 1, 1)
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'keep': [9] * 5}, '5 entries'),
        ({'keep': [65] * 6}, 'has 64 patches'),
        ({'keep': [9, 9, -1, 0, 0, 0]}, 'keep has -1'),
        ({'keep': 3}, 'no sparsity level 3'),
        ({'method': 'medians'}, 'method must be'),
        ({'init': 'first'}, 'init must be'),
        ({'method': 'conv'}, 'reduce_at'),
    ],
)
def test_bad_settings(kwargs, message):
    kwargs.setdefault('keep', KEEP)
    with pytest.raises(ValueError, match=message):
        TokenPoolingDeiT(**SMALL, **kwargs)


def test_bad_level():
    with pytest.raises(ValueError, match='no sparsity level 8 of deit-small'):
        TokenPoolingDeiT('deit-small', keep=8)
