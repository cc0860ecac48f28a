"""What all plain ViTs have in common."""

import math

import pytest
import torch
from torch import nn

from clustr_mm.backbones.dynamic_vit import DynamicViT
from clustr_mm.backbones.evit import EViT
from clustr_mm.backbones.hvt import HVT
from clustr_mm.backbones.token_pooling import TokenPoolingDeiT
from clustr_mm.backbones.vit import ThinViT
from clustr_mm.checkpoints.layouts import convert
from clustr_mm.registry import MODELS
from clustr_mm.tokens.trail import resize_positions
from tests.tiny_models import ARCH, CASES, SMALL, build, images
from tests.torch_features import exports, float16

ALL = sorted(CASES)
TRACED = {'featmap', 'avg_featmap'}


@torch.no_grad()
def run(model, img):
    return model(img)[0]


@pytest.mark.parametrize('name', ALL)
def test_registered(name):
    model, kwargs = CASES[name]
    built = MODELS.build({'type': model.__name__, **SMALL, **kwargs})
    assert isinstance(built, model)


@pytest.mark.parametrize('name', ['dense', 'hvt', 'dynamicvit'])
def test_initialisation(name):
    model = CASES[name][0](**{**SMALL, **CASES[name][1]})
    model.init_weights()
    weight = model.blocks[0].mlp.fc1.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert not model.blocks[0].mlp.fc1.bias.any()
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.blocks[0].norm1.eps == model.norm.eps == 1e-6  # as in DeiT


def test_options_reach_the_blocks():
    model = ThinViT(
        **SMALL,
        qkv_bias=False,
        qk_norm='learned',
        qk_alpha=3.0,
        drop_rate=0.1,
        attn_drop_rate=0.2,
        drop_path_rate=0.3,
        layer_scale_init_value=0.5,
        residual_scale=2.0,
        with_cp=True,
    )
    rates = [block.drop_path.drop_prob for block in model.blocks]
    # In proportion to the depth.
    assert rates == pytest.approx([0.0, 0.06, 0.12, 0.18, 0.24, 0.3])
    for block in model.blocks:
        assert block.attn.qkv.bias is None
        assert block.attn.qk_norm == 'learned'
        assert block.attn.alpha.item() == 3
        assert block.attn.drop.p == 0.1
        assert block.attn.attn_drop_rate == 0.2
        assert block.ls1.weight.eq(0.5).all()
        assert block.residual_scale == 2
        assert block.with_cp


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize(
    'size', [(32, 32), (40, 24), (4, 4), (1, 1), (3, 70), (4, 8)]
)
def test_any_image(name, size):
    grid = tuple(math.ceil(side / 4) for side in size)
    img = images(2, *size)
    fmap = run(build(name, out_type='featmap'), img)
    assert fmap.shape == (2, 48, *grid)
    assert fmap.isfinite().all()
    mean = run(build(name, out_type='avg_featmap'), img)
    assert mean.shape == (2, 48)
    assert mean.isfinite().all()
    raw = run(build(name, out_type='raw'), img)
    assert raw.shape[::2] == (2, 48)
    assert raw.shape[1] <= 1 + math.prod(grid)
    assert raw.isfinite().all()


@pytest.mark.parametrize('name', ALL)
def test_map_at_every_block(name):
    model = build(name, out_type='featmap', out_indices=range(6))
    with torch.no_grad():
        outs, trail = model.trace(images(2, 24, 40))
    assert [out.shape for out in outs] == [(2, 48, 6, 10)] * 6
    assert trail.owners(2).shape == (2, 60)


@pytest.mark.parametrize('name', ALL)
def test_tokens_in_the_map(name):
    """Where tokens are still in the sequence, the map shows their values."""
    model = build(name, out_type='raw')
    with torch.no_grad():
        (raw,), trail = model.trace(images())
        model.out_type = 'featmap'
        fmap = run(model, images()).flatten(2).mT
    x = raw[:, model.num_extra_tokens :]
    if trail.pooled:
        assert math.prod(trail.pooled) == x.shape[1]
        return
    owners = trail.owners(2)
    for b in range(2):
        inside = owners[b] < x.shape[1]
        assert inside.any()
        assert torch.equal(fmap[b, inside], x[b, owners[b, inside]])


@pytest.mark.parametrize('name', ALL)
def test_images_do_not_mix_and_results_repeat(name):
    model = build(name, out_type='featmap')
    img = images(3)
    fmap = run(model, img)
    assert torch.equal(fmap, run(model, img))
    alone = torch.cat([run(model, one[None]) for one in img])
    torch.testing.assert_close(fmap, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize('name', ALL)
def test_nan(name):
    model, img = build(name, out_type='featmap'), images()
    clean = run(model, img)
    img[1, 0, 5, 5] = math.nan
    fmap = run(model, img)
    torch.testing.assert_close(fmap[0], clean[0], rtol=1e-4, atol=1e-4)
    assert fmap[1].isnan().any()
    assert run(build(name, out_type='raw'), img)[1].isnan().all()


@pytest.mark.parametrize('name', ALL)
@pytest.mark.parametrize('dtype', [torch.bfloat16, float16])
@pytest.mark.parametrize('how', ['autocast', 'cast'])
def test_low_precision(name, dtype, how):
    for out_type in ('featmap', 'avg_featmap'):
        model, img = build(name, out_type=out_type), images()
        full = run(model, img)
        if how == 'autocast':
            with torch.autocast('cpu', dtype):
                out = run(model, img)
        else:
            out = run(model.to(dtype), img.to(dtype))
            assert out.dtype == dtype
        assert out.shape == full.shape
        assert out.isfinite().all()


def trained(model, img):
    torch.manual_seed(0)  # DynamicViT draws
    model.zero_grad()
    sum(out.square().mean() for out in model(img)).backward()
    return {
        name: parameter.grad for name, parameter in model.named_parameters()
    }


@pytest.mark.parametrize('name', ALL)
def test_every_parameter_learns_also_with_checkpointing(name):
    kwargs = {'out_type': 'featmap', 'drop_path_rate': 0.2}
    model = build(name, **kwargs).train()
    frugal = build(name, with_cp=True, **kwargs).train()
    grads, same = trained(model, images()), trained(frugal, images())
    untouched = [n for n, grad in grads.items() if grad is None]
    assert untouched == []
    for key, grad in grads.items():
        torch.testing.assert_close(grad, same[key], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('name', ['dense', 'evit', 'dynamic-lvvit', 'hvt'])
def test_frozen_stages(name):
    model = build(name, out_type='featmap', frozen_stages=3).train()
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    expected = ('pos_embed', 'cls_token', 'patch_embed.', 'blocks.0.') + (
        'blocks.1.',
        'blocks.2.',
        *(
            f'reducers.{i}.'
            for i, reducer in enumerate(model.reducers)
            if reducer.block < 3
        ),
    )
    assert frozen == {
        n for n, _ in model.named_parameters() if n.startswith(expected)
    }
    assert not model.blocks[2].training
    assert model.blocks[3].training
    assert not model.patch_embed.training
    grads = trained(model, images())
    assert all((grad is None) == (n in frozen) for n, grad in grads.items())


def test_norm_eval():
    model = build('lvvit', norm_eval=True).train()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert len(norms) == 3
    assert not any(norm.training for norm in norms)


def test_get_layer_depth():
    model = build('dynamicvit')
    depths = {
        'backbone.pos_embed': 0,
        'backbone.patch_embed.proj.weight': 0,
        'backbone.blocks.0.norm1.weight': 1,
        'backbone.reducers.1.predictor.score.0.weight': 4,
        'backbone.blocks.5.mlp.fc1.bias': 6,
        'backbone.norm.weight': 7,
        'head.fc.weight': 7,
    }
    for name, depth in depths.items():
        assert model.get_layer_depth(name, 'backbone.') == (depth, 8)


@pytest.mark.parametrize('name', ['dense', 'hvt', 'hvt-2d', 'evit'])
def test_load_weights_of_another_image_size(name):
    """Loaded weights act like positions interpolated for each image."""
    model = build(name, out_type='featmap')
    large = build(name, seed=1, out_type='featmap', img_size=(48, 40))
    large.load_state_dict(model.state_dict())
    img = images(1, 48, 40)
    torch.testing.assert_close(run(large, img), run(model, img))


KEEP_ALL = {
    'dense': {},
    'kmeans': {'keep': [64] * 6},
    'power': {'keep': [64] * 6, 'qk_norm': None},
    'evit': {'keep': 1.0},
    'dynamicvit': {'keep': 1.0},
    'hvt': {'num_stages': 0},
}


def as_mmpretrain(**kwargs):
    backbones = pytest.importorskip('mmpretrain.models.backbones')
    torch.manual_seed(0)
    model = backbones.VisionTransformer(**{**SMALL, **kwargs})
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    state_dict = {f'backbone.{k}': v for k, v in model.state_dict().items()}
    state_dict = convert(state_dict, 'mmpretrain-vit')
    model.eval()
    return model, {
        key.removeprefix('backbone.'): value
        for key, value in state_dict.items()
    }


@pytest.mark.parametrize('out_type', ThinViT.OUT_TYPES)
@pytest.mark.parametrize('name', KEEP_ALL)
@pytest.mark.parametrize('size', [(32, 32), (23, 42)])
def test_same_as_mmpretrain_if_all_is_kept(name, out_type, size):
    if name == 'hvt' and out_type == 'cls_token':
        pytest.skip('HVT has no class token')
    kwargs = {'out_type': out_type, 'out_indices': [2, 5]}
    model = CASES[name][0](**{**SMALL, **KEEP_ALL[name], **kwargs})
    dense = dict(kwargs)
    if name == 'hvt':
        dense['with_cls_token'] = False
        if out_type == 'avg_featmap':
            model = HVT(**SMALL, num_stages=0, pool_norm=True, **kwargs)
    theirs, state_dict = as_mmpretrain(**dense)
    missing, unexpected = model.load_state_dict(state_dict, strict=False)
    assert unexpected == []
    assert all('predictor' in key for key in missing)
    with torch.no_grad():
        expected = theirs(images(2, *size))
        outs = model.eval()(images(2, *size))
    assert len(outs) == 2
    for out, reference in zip(outs, expected, strict=True):
        torch.testing.assert_close(out, reference, rtol=1e-4, atol=1e-4)


def test_dinov2_like_weights_of_mmpretrain():
    kwargs = {'layer_scale_init_value': 1e-5, 'qkv_bias': False}
    theirs, state_dict = as_mmpretrain(**kwargs)
    model = ThinViT(**SMALL, **kwargs).eval()
    model.load_state_dict(state_dict)
    torch.testing.assert_close(
        run(model, images()), run(theirs, images()), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize('offset', [0.0, 0.1])
def test_positions_of_another_grid(offset):
    """In a forward pass as in a checkpoint that is loaded."""
    model = build('dense', interpolate_offset=offset)
    expected = resize_positions(
        model.pos_embed, (8, 8), (12, 10), 1, offset=offset
    )
    img = images(1, 48, 40)
    with torch.no_grad():
        x, _ = model.embed(img, track=False)
        patches = model.patch_embed(img).flatten(2).mT
    torch.testing.assert_close(x[:, 1:], patches + expected[:, 1:])
    larger = build('dense', img_size=(48, 40), interpolate_offset=offset)
    larger.load_state_dict(model.state_dict())
    assert torch.equal(larger.pos_embed, expected)


@pytest.mark.parametrize(
    'model', [EViT, DynamicViT, TokenPoolingDeiT, HVT, ThinViT]
)
def test_any_dense_checkpoint_loads(model):
    """Only what a method adds is missing from dense weights."""
    special = {'keep': [9] * 6} if model is TokenPoolingDeiT else {}
    thin = model(**SMALL, **special)
    dense = build('dense').state_dict()
    missing, unexpected = thin.load_state_dict(dense, strict=False)
    assert all(key.startswith('reducers.') for key in missing)
    assert unexpected == (['cls_token'] if model is HVT else [])
    positions = dense['pos_embed'][:, 1 - thin.num_extra_tokens :]
    assert torch.equal(thin.pos_embed, positions)


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'arch': 'huge'}, 'no arch'),
        ({'arch': {'embed_dims': 48}}, 'arch lacks'),
        ({'arch': {**ARCH, 'num_heads': 7}}, '7 heads'),
        ({'out_type': 'map'}, 'out_type must be'),
        ({'out_indices': [6]}, '6 blocks'),
        ({'out_indices': -7}, '6 blocks'),
        ({'with_cls_token': False}, 'needs a class token'),
        ({'qk_norm': 'cosine'}, 'qk_norm must be'),
        ({'qk_norm': 'learned', 'qk_alpha': 0.0}, 'qk_alpha must be above 0'),
        ({'qk_alpha': 5.0}, 'of no use without qk_norm'),
        ({'frozen_stages': 7}, 'in -1..6, the number of blocks, but is 7'),
    ],
)
def test_bad_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ThinViT(**{**SMALL, **kwargs})


def test_a_dense_trunk_follows_nothing():
    model = build('dense', out_type='featmap')
    with torch.no_grad():
        _, trail = model.trace(images())
    assert trail.owner is None
    assert trail.steps == []


def test_attention_is_never_kept_whole(monkeypatch):
    """Column sums in tiles equal those of one product, gradients too."""
    from clustr_mm.layers import attention

    model, img = build('power', out_type='featmap'), images()
    whole = run(model, img)
    grads = trained(model, img)
    monkeypatch.setattr(attention, '_TILE', 3 * 10 * 65)
    torch.testing.assert_close(run(model, img), whole, rtol=1e-4, atol=1e-5)
    for key, grad in trained(model, img).items():
        torch.testing.assert_close(grad, grads[key], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize('name', ['evit', 'dynamicvit', 'hvt'])
def test_a_detector_s_image(name):
    kwargs = {'patch_size': 16, 'img_size': 224, 'out_type': 'featmap'}
    fmap = run(build(name, **kwargs), images(1, 800, 1333))
    assert fmap.shape == (1, 48, 50, 84)
    assert fmap.isfinite().all()


@exports
@pytest.mark.parametrize('name', ['evit', 'dynamicvit', 'hvt', 'random'])
def test_export_with_any_batch(name):
    model = build(name, out_type='featmap')
    dim = torch.export.Dim('batch', max=64)
    with torch.no_grad():
        program = torch.export.export(
            model, (images(2),), dynamic_shapes=({0: dim},)
        )
        for batch in (2, 5):
            img = images(batch, seed=batch)
            torch.testing.assert_close(
                program.module()(img)[0], model(img)[0], rtol=1e-4, atol=1e-4
            )
