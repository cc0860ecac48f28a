import math

import pytest
import torch
import torch.nn.functional as F

from clustr_mm.analysis.cost import count_macs
from clustr_mm.backbones.tome import MergedTokens, ToMe, match
from clustr_mm.registry import MODELS
from clustr_mm.tokens.trail import Trail
from tests.tiny_models import CASES, SMALL, build, images
from tests.torch_features import exports, float16


@pytest.fixture(autouse=True)
def _case(monkeypatch):
    monkeypatch.setitem(CASES, 'tome', (ToMe, {'merge': 7}))


def matched_by_hand(keys, num_merged, with_cls_token=True):
    """Sets of tokens that become one, in their new order, of an image.

    The first token of all looks for a partner, which a class token may not
    take; it stays the first, as the others stay in their order.
    """
    looking, looked_at = range(1, len(keys), 2), range(0, len(keys), 2)
    if not with_cls_token:
        looking, looked_at = looked_at, looking
    similarity = F.cosine_similarity(keys[:, None], keys[None], dim=-1)
    sets = {i: [i] for i in range(len(keys))}
    edges = []
    for i in looking:
        if not looked_at:
            return list(sets.values())
        partner = max(looked_at, key=lambda j, i=i: similarity[i, j])
        edges.append((similarity[i, partner].item(), i, partner))
    edges = sorted(edges, reverse=True)
    for _, i, partner in edges[:num_merged]:
        sets[partner] += sets.pop(i)
    staying = [i for _, i, _ in edges[num_merged:]]
    if with_cls_token:
        staying.sort()
    return [sets[i] for i in [*staying, *looked_at]]


@pytest.mark.parametrize('num_tokens', [2, 3, 9, 16, 49])
@pytest.mark.parametrize('share', [0, 0.1, 0.25, 0.5])
@pytest.mark.parametrize('with_cls_token', [True, False])
def test_matching_by_hand(num_tokens, share, with_cls_token):
    keys = torch.randn(3, num_tokens, 8)
    num_merged = math.floor(share * num_tokens)
    labels = match(keys, num_merged, with_cls_token)
    for b in range(3):
        groups = matched_by_hand(keys[b], num_merged, with_cls_token)
        for number, members in enumerate(groups):
            found = (labels[b] == number).nonzero()[:, 0].tolist()
            assert found == sorted(members)


@pytest.mark.parametrize('as_config', [True, False])
@pytest.mark.parametrize('with_cls_token', [True, False])
def test_a_reducer_knows_of_the_class_token(with_cls_token, as_config):
    kwargs = dict(merge=[7, 0, 0, 0, 0, 0])
    if as_config:
        reducer = dict(type='MergedTokens', merge=7 / 64, block=0)
        kwargs = dict(merge=0, reducers=[reducer])
    model = build(
        'tome', with_cls_token=with_cls_token, out_type='raw', **kwargs
    )
    with torch.no_grad():
        x, trail = model.embed(images(), track=True)
        _, keys = model.blocks[0].attend(x, statistic='keys')
        model.run_block(0, x, trail)
    keys = keys[:, model.num_extra_tokens :]
    for b in range(2):
        groups = matched_by_hand(keys[b], 7, with_cls_token)
        for number, members in enumerate(groups):
            owned = (trail.owners(2)[b] == number).nonzero()[:, 0].tolist()
            assert owned == sorted(members)


def test_two_reductions_by_hand():
    """Averages are weighted by size, over patches and not over tokens."""
    reducer, trail = MergedTokens(merge=10 / 36, block=0), Trail((6, 6))
    first = torch.randn(2, 36, 5)
    keys = torch.randn(2, 36, 8), torch.randn(2, 26, 8)
    x = reducer(reducer(first, trail, keys[0]), trail, keys[1])
    assert x.shape == (2, 16, 5)
    assert torch.equal(trail.sizes(x).sum(1), torch.full((2,), 36.0))
    for b in range(2):
        once = matched_by_hand(keys[0][b], 10)
        for number, members in enumerate(matched_by_hand(keys[1][b], 10)):
            patches = sum((once[member] for member in members), [])
            owned = (trail.owners(2)[b] == number).nonzero()[:, 0].tolist()
            assert owned == sorted(patches)
            assert trail.sizes(x)[b, number] == len(patches)
            torch.testing.assert_close(x[b, number], first[b, patches].mean(0))


def test_keys_are_those_of_the_attention():
    attn = build('tome').blocks[0].attn
    x = torch.randn(2, 10, 48)
    _, keys, _ = attn.qkv(x).unflatten(2, (3, 3, 16)).permute(2, 0, 3, 1, 4)
    torch.testing.assert_close(attn(x, statistic='keys')[1], keys.mean(1))


def test_a_block_by_hand():
    """Attention with every token as often as it has patches, then merging."""
    model = build('tome', merge=[7, 7, 0, 0, 0, 0], out_type='raw')
    with torch.no_grad():
        x, trail = model.embed(images(), track=True)
        x = model.run_block(0, x, trail)
        sizes = F.pad(trail.sizes(x[:, 1:]), (1, 0), value=1).long()
        found = model.run_block(1, x, trail)
        assert found.shape == (2, 1 + 64 - 14, 48)
        block = model.blocks[1]
        for b in range(2):
            many = x[b : b + 1].repeat_interleave(sizes[b], 1)
            last = sizes[b].cumsum(0) - 1
            out = block.attend(many)[0][0, last]
            _, keys = block.attend(x[b : b + 1], statistic='keys')
            groups = matched_by_hand(keys[0, 1:], 7)
            merged = [out[0]]
            for members in groups:
                rows = torch.tensor(members) + 1
                weight = sizes[b, rows, None] / sizes[b, rows].sum()
                merged.append((weight * out[rows]).sum(0))
            expected = block.feed(torch.stack(merged)[None])[0]
            torch.testing.assert_close(
                found[b], expected, rtol=1e-4, atol=1e-4
            )


def test_at_most_half_of_the_patches_are_merged():
    model = build('tome', merge=32, out_type='raw', out_indices=range(6))
    outs = model(images())
    assert [out.shape[1] for out in outs] == [33, 17, 9, 5, 3, 2]
    model = build(
        'tome', merge=32, with_cls_token=False, out_type='raw', out_indices=5
    )
    assert model(images())[0].shape == (2, 1, 48)


def cost_by_hand(dims, merge):
    """Of DeiT's layers and attention, for an image of 224 x 224."""
    total, num_tokens = 196 * 16 * 16 * 3 * dims + dims * 1000, 197
    for _ in range(12):
        total += 4 * num_tokens * dims**2 + 2 * num_tokens**2 * dims
        num_tokens -= min(merge, (num_tokens - 1) // 2)
        total += 8 * num_tokens * dims**2
    return total


@pytest.mark.parametrize(
    ('arch', 'merge'),
    [
        *(('deit-small', merge) for merge in (0, 8, 13, 16)),
        *(('deit-tiny', merge) for merge in (8, 12, 16)),
    ],
)
def test_costs(arch, merge):
    model = ToMe(arch, merge=merge).eval()
    with torch.no_grad():
        cost = count_macs(model, torch.zeros(1, 3, 224, 224))
    found = cost.part('').total(('layers', 'attention'))
    head = model.embed_dims * 1000
    assert found + head == cost_by_hand(model.embed_dims, merge)
    assert cost.macs < 1.005 * cost.paper_macs


@pytest.mark.parametrize(('merge', 'giga'), [(0, '4.6'), (13, '2.7')])
def test_printed_costs(merge, giga):
    """Those of the paper's comparison on DeiT-S."""
    assert f'{cost_by_hand(384, merge) / 1e9:.1f}' == giga


def test_schedules():
    numbers = [r.merge * 64 for r in build('tome', merge=5).reducers]
    assert numbers == pytest.approx([5] * 6)
    model = build('tome', merge=5, schedule='decreasing')
    numbers = [r.merge * 64 for r in model.reducers]
    # The last block, which merges none, has no reducer.
    assert numbers == pytest.approx([10, 8, 6, 4, 2])


def test_in_proportion_for_other_sizes():
    model = build('tome', out_type='raw')
    with torch.no_grad():
        assert model(images(1, 32, 32))[0].shape[1] == 1 + 64 - 6 * 7
        assert model(images(1, 64, 64))[0].shape[1] == 1 + 4 * (64 - 6 * 7)


@pytest.mark.parametrize('merge', [7, 40, 64])
@pytest.mark.parametrize(
    'size', [(32, 32), (40, 24), (4, 4), (1, 1), (3, 70), (4, 8)]
)
def test_map_of_any_image(merge, size):
    model = build('tome', merge=merge, out_type='featmap', detail=False)
    with torch.no_grad():
        (fmap,), trail = model.trace(images(2, *size))
    grid = tuple(math.ceil(side / 4) for side in size)
    assert fmap.shape == (2, 48, *grid)
    assert fmap.isfinite().all()
    owners = trail.owners(2)
    for b in range(2):
        # Patches of a token share its value, others do not.
        values = fmap[b].flatten(1).mT
        same = (values[:, None] == values[None]).all(-1)
        assert torch.equal(same, owners[b][:, None] == owners[b])


def test_images_do_not_mix():
    model = build('tome', out_type='featmap')
    img = images(3)
    with torch.no_grad():
        fmap = model(img)[0]
        alone = torch.cat([model(one[None])[0] for one in img])
    torch.testing.assert_close(fmap, alone, rtol=1e-4, atol=1e-4)


def test_nan_stays_in_its_image():
    model, img = build('tome', out_type='featmap'), images()
    with torch.no_grad():
        clean = model(img)[0]
        img[1, 0, 5, 5] = math.nan
        fmap = model(img)[0]
    torch.testing.assert_close(fmap[0], clean[0], rtol=1e-4, atol=1e-4)
    assert fmap[1].isnan().any()


@pytest.mark.parametrize('dtype', [torch.bfloat16, float16])
@pytest.mark.parametrize('how', ['autocast', 'cast'])
def test_low_precision(dtype, how):
    model, img = build('tome', out_type='featmap'), images()
    with torch.no_grad():
        if how == 'autocast':
            with torch.autocast('cpu', dtype):
                out = model(img)[0]
        else:
            out = model.to(dtype)(img.to(dtype))[0]
            assert out.dtype == dtype
    assert out.shape == (2, 48, 8, 8)
    assert out.isfinite().all()


def test_every_parameter_learns_also_with_checkpointing():
    def gradients(with_cp):
        model = build('tome', out_type='featmap', with_cp=with_cp).train()
        model(images())[0].square().mean().backward()
        return {name: p.grad for name, p in model.named_parameters()}

    plain, recomputed = gradients(False), gradients(True)
    for name, grad in plain.items():
        if 'cls_token' not in name:
            assert grad.abs().sum() > 0, name
        torch.testing.assert_close(recomputed[name], grad)


def test_gradient_of_the_merge():
    """Each member of a token has its share of the token's gradient."""
    reducer, trail = MergedTokens(merge=0.25, block=0), Trail((4, 4))
    x = torch.randn(1, 16, 3, dtype=torch.float32, requires_grad=True)
    reducer(x, trail, torch.randn(1, 16, 8)).sum().backward()
    owners = trail.owners(1)[0]
    sizes = torch.bincount(owners)[owners].float()
    torch.testing.assert_close(x.grad[0], (1 / sizes)[:, None].expand(16, 3))


def test_equal_patches():
    """Sizes are carried: what is all the same may be merged at no loss."""
    merged = build('tome', merge=32, out_type='cls_token')
    dense = build('tome', merge=0, out_type='cls_token')
    forgetful = build('tome', merge=32, out_type='cls_token', carry=False)
    for model in (merged, dense, forgetful):
        model.pos_embed.data[:, 1:] = 0
    img = images(2, 4, 4).tile(8, 8)
    with torch.no_grad():
        expected = dense(img)[0]
        torch.testing.assert_close(
            merged(img)[0], expected, rtol=1e-3, atol=1e-3
        )
        assert not torch.allclose(forgetful(img)[0], expected, atol=1e-2)


def test_same_weights_as_deit():
    """It is inserted into a trained DeiT: no parameter is new."""
    model = build('tome')
    model.load_state_dict(build('dense').state_dict())
    tokens = build('dense', out_type='raw')(images())[0]
    assert torch.equal(
        build('tome', merge=0, out_type='raw')(images())[0], tokens
    )


@exports
def test_exported_for_any_batch():
    model = build('tome', out_type='featmap')
    batch = {0: torch.export.Dim('batch', max=64)}
    program = torch.export.export(model, (images(2),), dynamic_shapes=[batch])
    with torch.no_grad():
        found = program.module()(images(3))[0]
        torch.testing.assert_close(found, model(images(3))[0])


def test_registered():
    model = MODELS.build({'type': 'ToMe', **SMALL, 'merge': 3})
    assert isinstance(model, ToMe)


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'merge': [1] * 5}, '5 entries, but there are 6'),
        ({'merge': -1}, 'from 0 on, not -1'),
        ({'merge': [1, 2, -3, 0, 0, 0]}, 'not -3'),
        ({'schedule': 'rising'}, 'schedule must be'),
        ({'arch': 'vit-giant'}, 'no arch'),
    ],
)
def test_bad_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ToMe(**{**SMALL, **kwargs})
