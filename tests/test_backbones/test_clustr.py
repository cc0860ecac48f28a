import itertools

import pytest
import torch
from torch import nn

from clustr_mm.backbones import ClusTR
from clustr_mm.backbones import clustr as module
from tests.abilities import float16

SMALL_ARCH = dict(
    depths=(1, 2, 2, 1),
    dims=(16, 32, 48, 64),
    num_heads=(1, 2, 3, 4),
    ffn_ratios=(2, 2, 2, 2),
)


def small(**options):
    torch.manual_seed(0)
    model = ClusTR(SMALL_ARCH, **options)
    model.init_weights()
    return model


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


def by_hand(attn, x):
    """Equation 8, without fused attention, for each image and cluster."""
    batch, n, dims = x.shape
    heads, width = attn.num_heads, dims // attn.num_heads
    out = torch.zeros_like(x)
    scales = attn.cluster(x, None)
    for b, (kv, found), h in itertools.product(
        range(batch), zip(attn.kv, scales, strict=True), range(heads)
    ):
        tokens = x[b]
        if found is not None:
            score = attn.score(tokens)[:, 0]
            tokens = torch.stack(
                [
                    score[members].softmax(0) @ tokens[members]
                    for members in (
                        found.labels[b] == m for m in range(found.num_clusters)
                    )
                ]
            )
        part = slice(h * width, (h + 1) * width)
        key, value = kv(tokens).chunk(2, -1)
        logits = attn.q(x[b])[:, part] @ key[:, part].T / width**0.5
        out[b, :, part] += logits.softmax(-1) @ value[:, part]
    return attn.proj(out)


@pytest.mark.parametrize('reduction', [(16, 4), (4, 1), (8,), (1,)])
def test_attention_is_equation_8(reduction):
    torch.manual_seed(0)
    attn = module.ClusterAttention(24, 3, reduction).double()
    x = torch.randn(2, 70, 24, dtype=torch.float64)
    torch.testing.assert_close(attn(x, (7, 10))[0], by_hand(attn, x))


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
    ],
)
def test_bad_arguments_are_refused_when_building(options, message):
    with pytest.raises(ValueError, match=message):
        ClusTR(**options)


def test_compiled_gives_the_same():
    model = small().eval()
    compiled = torch.compile(model, backend='aot_eager')
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        for a, b in zip(model(x), compiled(x), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
