import pytest
import torch
import torch.nn.functional as F

from clustr_mm.backbones.token_pooling import KEEP as LEVELS
from clustr_mm.backbones.token_pooling import TokenPoolingDeiT, _scattered
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from clustr_mm.tokens.trail import Trail
from tests.recorded import on_meta
from tests.tiny_models import KEEP, SMALL, build, images

# Tables 3 to 5, added up; with 173 for an entry that is not printed.
SUMS = {
    'deit-small': [2015 + 173, 1430, 1216, 1082, 974, 686, 527, 396],
    'deit-e318': [2200, 1472, 1250, 1107, 988, 704, 555, 450],
    'deit-e252': [2227, 1499, 1274, 1114, 1002, 695, 516, 412],
}


def test_levels_are_those_of_the_tables():
    assert {k: list(map(sum, table)) for k, table in LEVELS.items()} == SUMS
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
    kwargs |= {'out_type': 'featmap', 'detail': False}
    for out in build('kmeans', **kwargs)(images()):
        assert out.shape == (2, 48, 8, 8)
        assert len(out[0].flatten(1).unique(dim=1).mT) <= 9


def test_column_sums_are_the_attention_received():
    attn = build('power', qk_norm=None).blocks[0].attn
    x = torch.randn(2, 10, 48)
    q, k, v = attn.qkv(x).unflatten(2, (3, 3, 16)).permute(2, 0, 3, 1, 4)
    probs = (q @ k.mT / 4).softmax(-1)
    out, column_sum = attn(x, statistic='column_sum')
    torch.testing.assert_close(column_sum, probs.sum((1, 2)))
    torch.testing.assert_close(
        out, attn.proj((probs @ v).mT.permute(0, 3, 1, 2).flatten(2))
    )


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('method', ['kmeans', 'kmedoids'])
def test_clusters(method, weighted):
    """Clusters start from what is most significant; see `test_kmeans`."""
    model = build('kmeans', method=method, weighted=weighted)
    reducer, x = model.reducers[0], torch.randn(2, 64, 48)
    column_sum, trail = torch.rand(2, 64), Trail((8, 8))
    out = reducer(x, trail, column_sum)
    init = column_sum.topk(40).indices
    weight = column_sum if weighted else None
    if method == 'kmeans':
        labels, centers = kmeans(x, init, weight)
    else:
        labels, medoids = kmedoids(x, init, weight)
        centers = torch.stack([x[b, medoids[b]] for b in range(2)])
    assert torch.equal(out, centers)
    assert torch.equal(trail.owners(2), labels)


def test_selection_is_by_significance():
    reducer = build('power').reducers[0]
    x, column_sum = torch.randn(2, 64, 48), torch.rand(2, 64)
    out = reducer(x, Trail((8, 8)), column_sum)
    for b in range(2):
        assert torch.equal(
            out[b], x[b, column_sum[b].argsort(descending=True)[:40]]
        )


def test_importance_is_drawn_in_proportion():
    reducer = build('importance').reducers[0].train()
    reducer.keep = 1 / 4
    column_sum = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(8000, 4)
    x = torch.eye(4).expand(8000, 4, 4)
    drawn = reducer(x, Trail((2, 2)), column_sum)[:, 0].mean(0)
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


@pytest.mark.parametrize('num', [36, 196, 1050])
def test_scattered_numbers_look_drawn(num):
    """As close to uniform, and to unrelated, as a fair draw mostly is."""
    x = _scattered(num, torch.device('cpu'))
    assert torch.equal(_scattered(num + 9, x.device)[:num], x)
    assert x.unique().numel() == num
    places = (torch.arange(num) + 0.5) / num
    # Kolmogorov's and Smirnov's distance, of 1 in 100 draws.
    assert (x.sort().values - places).abs().max() < 1.63 / num**0.5
    for lag in range(1, 30):
        pair = torch.stack([x[lag:], x[:-lag]])
        assert torch.corrcoef(pair)[0, 1].abs() < 3.3 / (num - lag) ** 0.5
    assert torch.corrcoef(torch.stack([x, places]))[0, 1].abs() < 3 / num**0.5


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
    out, column_sum = attn(x, statistic='column_sum', bias=sizes.log())
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
    for statistic in (None, 'column_sum', 'class_row'):
        torch.testing.assert_close(
            attn(x, statistic=statistic)[0], out, rtol=1e-4, atol=1e-5
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
