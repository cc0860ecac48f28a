import itertools
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from clustr_mm.analysis.cost import count_macs
from clustr_mm.backbones import ClusTR
from clustr_mm.backbones import clustr as module
from clustr_mm.tokens import merging
from clustr_mm.tokens.maps import map_to_tokens, tokens_to_map
from tests.tiny_models import clustr, clustr_arch
from tests.torch_features import float16, one_graph

SMALL_ARCH = clustr_arch((1, 2, 2, 1), 16)
small = partial(clustr, (1, 2, 2, 1), 16)


class LargestTensor(TorchDispatchMode):
    """How many numbers the largest tensor has that is computed."""

    size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.size = max(self.size, out.untyped_storage().size())
        return out


def millions(model, classifier=False):
    count = sum(p.numel() for p in model.parameters())
    if classifier:
        count += nn.Linear(512, 1000).weight.numel() + 1000
    return count / 1e6


@pytest.mark.parametrize(
    ('options', 'printed'),
    [
        # Tables 1, 6 and 7. The paper prints base as 40.2 and as 40.3.
        (dict(arch='tiny'), 11.70),
        (dict(arch='small'), 22.71),
        (dict(arch='base'), 40.26),
        (dict(arch='tiny', reduction=(64, 16, 4, 1)), 10.84),
        (dict(arch='tiny', reduction=(16, 4, 1, 1)), 10.83),
        (dict(arch='tiny', attention='sra'), 13.20),
        (dict(arch='tiny', attention='sra_knn'), 13.20),
    ],
)
def test_parameters_as_printed(options, printed):
    assert millions(ClusTR(**options), True) == pytest.approx(
        printed, abs=0.005
    )


@pytest.mark.parametrize('attention', ['cluster', 'sra', 'sra_knn'])
@pytest.mark.parametrize(
    'size', [(1, 1), (3, 2), (32, 32), (31, 45), (97, 130), (8, 300)]
)
def test_maps_of_any_size_are_rounded_up(attention, size):
    model = small(attention=attention).eval()
    with torch.no_grad():
        maps = model(torch.randn(2, 3, *size))
    for fmap, stride, dims in zip(
        maps, (4, 8, 16, 32), SMALL_ARCH['dims'], strict=True
    ):
        assert fmap.shape == (2, dims, *(-(-n // stride) for n in size))
        assert fmap.isfinite().all()


@pytest.mark.parametrize('attention', ['cluster', 'sra'])
@pytest.mark.parametrize('batch', [1, 2])
def test_all_maps_lie_as_tokens_do(attention, batch):
    """Else each convolution copies its map, there and back."""
    model, seen = small(attention=attention).eval(), []

    def look(conv, inputs, out):
        seen.append((tokens_to_map(map_to_tokens(out), out.shape[2:]), out))

    for module_ in model.modules():
        if isinstance(module_, nn.Conv2d):
            module_.register_forward_hook(look)
    with torch.no_grad():
        maps = model(torch.randn(batch, 3, 64, 96))
    assert seen
    for lying_as_tokens, out in seen:
        assert map_to_tokens(out).is_contiguous()
        assert out.stride() == lying_as_tokens.stride()
    assert all(fmap.is_contiguous() for fmap in maps)


def by_hand(attn, x):
    """Equation 8 or 7, without fused attention, for each image and head."""
    batch, n, dims = x.shape
    heads, width = attn.num_heads, dims // attn.num_heads
    out = torch.zeros_like(x)
    scales = attn.cluster(x, None)
    for b, h in itertools.product(range(batch), range(heads)):
        part = slice(h * width, (h + 1) * width)
        query = attn.q(x[b])[:, part]
        sets = [
            kv(merged_by_hand(attn, x[b], found, b)).unflatten(1, (2, dims))
            for kv, found in zip(attn.kv, scales.clusters, strict=True)
        ]
        if attn.joint:
            sets = [torch.cat(sets)]
        for found in sets:
            logits = query @ found[:, 0, part].T / width**0.5
            out[b, :, part] += logits.softmax(-1) @ found[:, 1, part]
    return attn.proj(out)


def merged_by_hand(attn, tokens, found, b):
    """The tokens of an image [N, C] that it attends to at a scale."""
    if found is None:
        return tokens
    score = attn.score(tokens)[:, 0]
    groups = [found.labels[b] == m for m in range(found.num_clusters)]
    groups = [g for g in groups if g.any()]
    merged = torch.stack([score[g].softmax(0) @ tokens[g] for g in groups])
    if isinstance(attn.norm, nn.LayerNorm):
        merged = merged - merged.mean(1, keepdim=True)
        merged = merged / (merged.square().mean(1, keepdim=True) + 1e-5).sqrt()
    if attn.carry:
        # A cluster is there once for each of its tokens.
        sizes = torch.tensor([g.sum() for g in groups])
        merged = merged.repeat_interleave(sizes, 0)
    return merged


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(joint=True),
        dict(merge_norm=True),
        # Images have numbers of clusters of their own.
        dict(joint=True, share=0.7),
        dict(carry=True),
        dict(carry=True, joint=True),
        dict(carry=True, joint=True, share=0.7),
    ],
)
@pytest.mark.parametrize('reduction', [(16, 4), (4, 1), (8,), (1,)])
@pytest.mark.parametrize('by_matrix', [False, True])
def test_attention_is_equation_8_or_7(
    reduction, options, by_matrix, monkeypatch
):
    # As on a device.
    monkeypatch.setattr(merging, '_has_matrix', lambda *_: by_matrix)
    torch.manual_seed(0)
    attn = module.ClusterAttention(24, 3, reduction, **options).double()
    x = torch.randn(2, 70, 24, dtype=torch.float64)
    torch.testing.assert_close(attn(x, (7, 10))[0], by_hand(attn, x))


def test_carry_makes_up_for_what_is_merged():
    """Attention to clusters of equal tokens is attention to all of them."""
    torch.manual_seed(0)
    attn = module.ClusterAttention(24, 3, (8,), carry=True).double()
    sizes = torch.tensor([6, 6, 6, 7, 7, 8, 9, 10, 10, 11])
    kinds = torch.randn(2, len(sizes), 24, dtype=torch.float64)
    x = kinds.repeat_interleave(sizes, 1)[:, torch.randperm(80)]
    among_all = attn.attend(x, [x], [None])
    torch.testing.assert_close(attn(x, (8, 10))[0], among_all)
    attn.carry = False
    assert not torch.allclose(attn(x, (8, 10))[0], among_all, atol=1e-3)


def test_knn_attention_ignores_all_but_the_largest():
    torch.manual_seed(0)
    x = torch.randn(1, 36, 8, dtype=torch.float64)
    attn = module.SpatialReductionAttention(8, 1, (1,), num_keys=3).double()
    attn.requires_grad_(False)
    key, value = attn.kv[0](x).chunk(2, -1)
    logits = attn.q(x)[0] @ key[0].T / 8**0.5
    for i in range(36):
        logits[i, logits[i].argsort()[:-3]] = -torch.inf
    expected = attn.proj(logits.softmax(-1) @ value[0])
    torch.testing.assert_close(attn(x, (6, 6))[0][0], expected)


def test_knn_attention_is_that_of_sra_knn_alone():
    img, maps = torch.randn(1, 3, 64, 64), []
    for attention, number in ('sra', 3), ('sra_knn', 256), ('sra_knn', 3):
        torch.manual_seed(0)
        model = small(attention=attention, num_keys=number).eval()
        maps.append(model(img)[-1])
    plain, of_all, of_few = maps
    assert torch.equal(plain, of_all)
    assert not torch.allclose(plain, of_few, atol=1e-4)


def test_same_bits_again_and_whatever_the_neighbours():
    model = small().eval()
    x = torch.randn(3, 3, 64, 80)
    other = torch.cat([x[:1], torch.randn(2, 3, 64, 80)])
    with torch.no_grad():
        first, again, changed = model(x), model(x), model(other)
        alone = model(x[:1])
    for a, b, c, d in zip(first, again, changed, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a[0], c[0])
        torch.testing.assert_close(a[:1], d, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    'options',
    [
        dict(reuse=True),
        dict(window=5),
        dict(window=5, reuse=True),
        dict(share=0.7),
        dict(assign='nearest'),
        dict(k=3),
        dict(joint=True),
        dict(merge_norm=True),
        dict(carry=True),
        dict(carry=True, joint=True, share=0.7, reuse=True),
    ],
)
def test_dials_change_the_result_and_train(options):
    x = torch.randn(2, 3, 64, 64)
    exact, model = small(), small(**options)
    maps = model(x)
    sum(m.square().mean() for m in maps).backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
    assert any(
        not torch.allclose(a, b) for a, b in zip(exact(x), maps, strict=True)
    )


def test_reuse_clusters_once_a_stage(monkeypatch):
    calls = []

    def spy(x, numbers, **options):
        calls.append(x.shape[1])
        return real(x, numbers, **options)

    real = module.density_peaks
    monkeypatch.setattr(module, 'density_peaks', spy)
    small(reuse=True)(torch.randn(1, 3, 64, 64))
    assert calls == [256, 64, 16]
    calls.clear()
    small()(torch.randn(1, 3, 64, 64))
    assert calls == [256, 64, 64, 16, 16]


def numbers_of_clusters(side, batch=1, training=False, **options):
    """For each stage, those of its scales, 0 for every token by itself."""
    model, found = small(**options).train(training), []
    for blocks in model.stages:
        blocks[0].attn.register_forward_hook(
            lambda module, args, out: found.append(
                [0 if c is None else c.num_clusters for c in out[1].clusters]
            )
        )
    with torch.no_grad():
        model(torch.randn(batch, 3, side, side))
    return found


USUAL = [[49, 196], [49, 196], [49, 0], [0]]


class TestGrowth:
    @pytest.mark.parametrize('growth', [0.0, 0.5, 1.0])
    def test_none_at_the_usual_size(self, growth):
        assert numbers_of_clusters(224, growth=growth) == USUAL

    @pytest.mark.parametrize(
        ('growth', 'expected'),
        [
            (1.0, [[196, 784], [196, 784], [196, 0], [0]]),
            (0.5, [[98, 392], [98, 392], [98, 392], [0]]),
            (0.0, [[49, 196], [49, 196], [49, 196], [0]]),
        ],
    )
    def test_by_its_power(self, growth, expected):
        """Four times as many tokens."""
        window = dict(window=28, reuse=True)
        found = numbers_of_clusters(448, growth=growth, **window)
        assert found == expected

    def test_linear_in_everything(self, monkeypatch):
        """Stage 4 too, which is dense at 896 x 896 and clusters at 1792."""
        # Of the meta device it knows nothing.
        monkeypatch.setattr(torch, 'autocast', lambda *_, **__: nullcontext())
        arch = {**SMALL_ARCH, 'depths': (1, 1, 1, 1)}

        def cost(growth):
            with torch.device('meta'):
                model = ClusTR(arch, window=56, growth=growth)
            macs, largest = [], []
            for side in 896, 1792:
                img = torch.empty(1, 3, side, side, device='meta')
                macs.append(count_macs(model, img).macs)
                with LargestTensor() as found, torch.no_grad():
                    model(img)
                largest.append(found.size)
            return macs[1] / macs[0], largest[1] / largest[0]

        more_work, more_memory = cost(0.0)
        assert more_work < 4 * 1.25
        assert more_memory <= 4
        assert cost(1.0)[0] > 4 * 2

    def test_the_same_in_training_and_in_any_batch(self):
        options = dict(growth=0.0, window=14, reuse=True)
        found = numbers_of_clusters(320, **options)
        assert found == numbers_of_clusters(
            320, batch=2, training=True, **options
        )

    def test_small_images_are_clustered_as_in_the_paper(self):
        assert numbers_of_clusters(96, growth=0.0) == numbers_of_clusters(96)

    def test_dense_stages_once_they_are_large(self):
        attn = module.ClusterAttention(8, 1, (1,), 3, growth=0.0)
        x = torch.randn(1, 784, 8)
        assert attn.cluster(x, (28, 28)).clusters == [None]
        x = torch.randn(2, 800, 8)
        scales = attn.cluster(x, (20, 40))
        assert scales.clusters[0].num_clusters == 784
        (merged,) = attn.merge(x, scales)
        labels = scales.clusters[0].labels[0]
        torch.testing.assert_close(merged[0, 5], x[0, labels == 5].mean(0))
        # All else is as in the paper.
        attn = module.ClusterAttention(8, 1, (1,), 3)
        assert attn.cluster(x, None).clusters == [None]

    def test_changes_the_result_and_trains(self):
        x = torch.randn(1, 3, 320, 256)
        exact = small(share=0.5, window=14)
        model = small(share=0.5, window=14, growth=0.0)
        maps = model(x)
        sum(m.square().mean() for m in maps).backward()
        for name, p in model.named_parameters():
            assert p.grad is not None, name
            assert p.grad.isfinite().all(), name
        assert not torch.allclose(exact(x)[0], maps[0])


def test_window_of_the_whole_grid_is_exact():
    x = torch.randn(2, 3, 64, 64)
    for a, b in zip(small()(x), small(window=16)(x), strict=True):
        assert torch.equal(a, b)


def test_gradients_of_the_attention():
    torch.manual_seed(0)
    attn = module.ClusterAttention(6, 2, (4, 1)).double()
    x = torch.randn(1, 12, 6, dtype=torch.float64, requires_grad=True)
    scales = attn.cluster(x, (3, 4))
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(
            attn, {'score.weight': w}, (x, (3, 4), scales)
        )[0],
        (x, attn.score.weight.detach().clone().requires_grad_()),
    )


def test_checkpointing_leaves_gradients_alone():
    x = torch.randn(2, 3, 64, 64)
    grads = []
    for with_cp in (False, True):
        model = small(with_cp=with_cp, reuse=True).train()
        sum(m.sum() for m in model(x)).backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize('dtype', [torch.bfloat16, float16])
def test_mixed_precision_clusters_alike(dtype):
    """Close to float32, as the clusters of the first stage are the same."""
    model = small(out_indices=(0,)).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        (full,) = model(x)
        with torch.autocast('cpu', dtype=dtype):
            (mixed,) = model(x)
    error = (full - mixed.float()).norm() / full.norm()
    assert error < 0.1


def test_half_precision_model():
    model = small().eval().bfloat16()
    with torch.no_grad():
        maps = model(torch.randn(1, 3, 64, 64).bfloat16())
    assert all(m.dtype == torch.bfloat16 and m.isfinite().all() for m in maps)


def test_nan_image_spoils_only_itself():
    model = small().eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        clean = model(x)
        x[0, 0, 0, 0] = torch.nan
        maps = model(x)
    for a, b in zip(clean, maps, strict=True):
        assert b[0].isnan().any()
        assert torch.equal(a[1], b[1])


def test_frozen_stages_and_norm_eval():
    model = small(frozen_stages=2, norm_eval=True).train()
    frozen = ('embeds.0.', 'stages.0.', 'norms.0.', 'embeds.1.', 'stages.1.',
              'norms.1.')  # fmt: skip
    for name, p in model.named_parameters():
        assert p.requires_grad != name.startswith(frozen), name
    assert not model.embeds[0].conv_norm.training
    assert not model.stages[1][0].training
    assert model.stages[2][0].training
    assert not small(norm_eval=True).train().embeds[0].conv_norm.training
    assert small().train().embeds[0].conv_norm.training


def test_out_indices():
    assert [m.shape[1] for m in small(out_indices=(0, 3))(
        torch.randn(1, 3, 32, 32))] == [16, 64]  # fmt: skip


def test_pretrained_with_prefix_at_another_resolution(tmp_path):
    source = small()
    with torch.no_grad():
        for p in source.parameters():
            p.add_(1)
    state = {f'backbone.{k}': v for k, v in source.state_dict().items()}
    torch.save({'state_dict': state}, tmp_path / 'model.pth')
    model = small(
        init_cfg=dict(
            type='Pretrained',
            checkpoint=str(tmp_path / 'model.pth'),
            prefix='backbone.',
        )
    )
    for a, b in zip(source.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)
    model(torch.randn(1, 3, 96, 33))


def test_initial_weights():
    model = ClusTR('tiny')
    model.init_weights()
    model.requires_grad_(False)
    assert model.stages[0][0].ffn.fc1.weight.std() == pytest.approx(
        0.02, rel=0.05
    )
    # A depth-wise 3 x 3 kernel has a fan-out of 9.
    assert model.stages[0][0].ffn.conv.weight.std() == pytest.approx(
        (2 / 9) ** 0.5, rel=0.05
    )
    assert not model.stages[0][0].attn.q.bias.any()


def test_drop_path_grows_with_depth():
    model = ClusTR(SMALL_ARCH, drop_path_rate=0.5)
    rates = [b.drop_path.drop_prob for s in model.stages for b in s]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(arch='huge'), 'arch must be one of tiny, small, base'),
        (dict(arch=dict(depths=(1, 1))), 'arch must give'),
        (dict(reduction=(64, 16, 4)), 'reduction must give each of the 4'),
        (dict(reduction=(64, 16, 4, 0)), 'reduction must give'),
        (dict(reduction=(64, 16, 4, ())), 'reduction must give'),
        (dict(attention='dense'), "'cluster', 'sra' or 'sra_knn'"),
        (dict(attention='sra', reduction=(5, 4, 4, 1)), 'one square number'),
        (dict(out_indices=(4,)), 'out_indices must be one or more of 0..3'),
        (dict(frozen_stages=5), 'frozen_stages must be in -1..4'),
        (dict(assign='closest'), 'assign must be'),
        (dict(window=0), 'window must be'),
        (dict(share=2.0), 'share must be'),
        (dict(k=0), 'k must be'),
        (dict(growth=-0.5), r'growth must be in \[0, 1\]'),
        (dict(growth=1.5), r'growth must be in \[0, 1\]'),
    ],
)
def test_bad_arguments_are_refused_when_building(options, message):
    with pytest.raises(ValueError, match=message):
        ClusTR(**options)


def compiled(**options):
    """A model, and the same in one graph."""
    model = clustr((1, 1, 2, 1), **options)
    torch._dynamo.reset()
    graph = torch.compile(model, backend='aot_eager', fullgraph=True)
    return model.eval(), graph


@one_graph
@pytest.mark.parametrize('carry', [False, True])
def test_compiled_gives_the_same(carry):
    model, graph = compiled(carry=carry)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        for a, b in zip(model(x), graph(x), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@one_graph
@pytest.mark.parametrize(
    'options',
    [dict(reuse=True, window=10, growth=0.0), dict(share=0.7, growth=0.5)],
)
def test_compiled_at_all_sizes_forward_and_backward(options):
    model, graph = compiled(**options)
    torch._dynamo.utils.counters.clear()
    for size in (64, 64), (96, 80), (128, 160), (160, 96):
        x, outs, gradients = torch.randn(2, 3, *size), [], []
        for run in model, graph:
            model.zero_grad()
            outs.append(run(x))
            sum(fmap.square().mean() for fmap in outs[-1]).backward()
            gradients.append([p.grad for p in model.parameters()])
        torch.testing.assert_close(*outs, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(*gradients, atol=1e-4, rtol=1e-4)
    # For the first size, and for all others.
    assert torch._dynamo.utils.counters['stats']['unique_graphs'] == 2
