"""Plain ViTs of timm and MMPretrain: the same outputs, then fewer tokens."""

import pytest
import torch
from mmengine.registry import init_default_scope
from torch import nn

import clustr_mm
from clustr_mm.backbones import EViT, ThinViT, ToMe
from clustr_mm.checkpoints.layouts import convert
from clustr_mm.errors import UserError
from clustr_mm.zoo import ThinClassifier, their_state_dict
from tests.tiny_models import vit_arch

SIDE = dict(img_size=32, patch_size=8)
# As a share of the 16 patches, at each of the three blocks.
MERGING = [dict(type='MergedTokens', block=i, merge=3 / 16) for i in range(3)]


def random_weights(model):
    """All of them, biases and gammas too."""
    torch.manual_seed(0)
    for param in model.parameters():
        nn.init.normal_(param, std=0.2)
    model.eval()  # which returns nothing in MMPretrain
    return model


def timm_vit(**options):
    timm = pytest.importorskip('timm.models.vision_transformer')
    small = dict(embed_dim=48, depth=3, num_heads=3, num_classes=7)
    return random_weights(
        timm.VisionTransformer(**{**SIDE, **small, **options})
    )


def mmpretrain_vit(**options):
    backbones = pytest.importorskip('mmpretrain.models.backbones')
    arch = vit_arch(48, 3, 3, mlp_ratio=2)
    return random_weights(
        backbones.VisionTransformer(**{**SIDE, 'arch': arch, **options})
    )


def outputs(model, image):
    with torch.no_grad():
        return model(image)


TIMM = {
    'class token': {},
    'average': dict(global_pool='avg'),
    'average without its norm': dict(global_pool='avg', fc_norm=False),
    'no class token': dict(global_pool='avg', class_token=False),
    'layer scale': dict(init_values=1e-5),
    'no bias of queries': dict(qkv_bias=False),
    'no head': dict(num_classes=0),
    'no last norm': dict(final_norm=False),
    'another eps': dict(norm_layer=lambda dim, **kw: nn.LayerNorm(dim, 0.1)),
    'not square': dict(img_size=(32, 48), patch_size=16, in_chans=4),
    'other widths': dict(mlp_ratio=2, num_heads=4, drop_path_rate=0.3),
}


@pytest.mark.parametrize('options', TIMM.values(), ids=list(TIMM))
def test_timm(options):
    theirs = timm_vit(**options)
    ours = clustr_mm.thin(theirs)
    height, width = theirs.patch_embed.img_size
    image = torch.randn(2, options.get('in_chans', 3), height, width)
    torch.testing.assert_close(
        outputs(ours.double(), image.double()),
        outputs(theirs.double(), image.double()),
        rtol=1e-9,
        atol=1e-9,
    )


@pytest.mark.parametrize('options', TIMM.values(), ids=list(TIMM))
def test_back_to_timm(options):
    theirs = timm_vit(**options)
    ours = clustr_mm.thin(theirs)
    back = their_state_dict(ours, 'timm-vit')
    expected = theirs.state_dict()
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[key], expected[key]) for key in back)


MMPRETRAIN = {
    'class token': {},
    'average': dict(out_type='avg_featmap'),
    'map': dict(out_type='featmap', out_indices=[0, 2]),
    'tokens': dict(out_type='raw', final_norm=False),
    'no class token': dict(out_type='avg_featmap', with_cls_token=False),
    'layer scale': dict(layer_scale_init_value=0.1),
    'no bias of queries': dict(qkv_bias=False, drop_path_rate=0.2),
}


@pytest.mark.parametrize('options', MMPRETRAIN.values(), ids=list(MMPRETRAIN))
def test_mmpretrain(options):
    theirs = mmpretrain_vit(**options)
    ours = clustr_mm.thin(theirs)
    assert isinstance(ours, ThinViT)
    back = their_state_dict(ours, 'mmpretrain-vit')
    expected = theirs.state_dict()
    assert back.keys() == expected.keys()
    assert all(torch.equal(back[key], expected[key]) for key in back)
    image = torch.randn(2, 3, 32, 32).double()
    found = outputs(ours.double(), image)
    expected = outputs(theirs.double(), image)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_whole_model_of_mmpretrain():
    models = pytest.importorskip('mmpretrain.models')
    init_default_scope('mmpretrain')
    theirs = models.ImageClassifier(
        backbone=dict(type='VisionTransformer', arch='deit-t', **SIDE),
        head=dict(
            type='VisionTransformerClsHead', num_classes=5, in_channels=192
        ),
    )
    random_weights(theirs)
    ours = clustr_mm.thin(theirs)
    assert type(ours) is type(theirs)
    assert type(theirs.backbone).__name__ == 'VisionTransformer'
    image = torch.randn(2, 3, 32, 32)
    found, expected = outputs(ours, image), outputs(theirs, image)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    # Nothing is shared.
    ours.head.layers.head.weight.data.zero_()
    assert torch.equal(outputs(theirs, image), expected)
    back = their_state_dict(clustr_mm.thin(theirs, MERGING), 'mmpretrain-vit')
    assert back.keys() == theirs.state_dict().keys()


PRESETS = {
    'evit': (
        EViT,
        dict(keep=0.5, reduce_at=[1]),
        [dict(type='AttentiveTokens', block=1, keep=0.5)],
        False,
    ),
    'tome': (ToMe, dict(merge=3), MERGING, True),
}


@pytest.mark.parametrize('name', PRESETS)
def test_thinned_as_the_papers_models_are(name):
    preset, options, reducers, carry = PRESETS[name]
    theirs = timm_vit()
    ours = clustr_mm.thin(theirs, reducers, carry=carry)
    assert isinstance(ours, ThinClassifier)
    model = preset(arch=vit_arch(48, 3, 3), **SIDE, **options).eval()
    state = convert(theirs.state_dict(), 'timm-vit')
    model.load_state_dict(
        {k[9:]: v for k, v in state.items() if k.startswith('backbone.')}
    )
    image = torch.randn(2, 3, 32, 32)
    features = outputs(model, image)[-1]
    expected = outputs(theirs.head, features)
    torch.testing.assert_close(outputs(ours, image), expected)
    full = outputs(clustr_mm.thin(theirs), image)
    assert not torch.allclose(expected, full, rtol=1e-3, atol=1e-3)


def test_state_of_the_model_is_kept():
    theirs = timm_vit().bfloat16().train()
    torch.manual_seed(3)
    ours = clustr_mm.thin(theirs, MERGING, carry=True)
    drawn = torch.rand(1)
    assert ours.training
    assert theirs.training
    assert next(ours.parameters()).dtype == torch.bfloat16
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)
    # A training takes it from there.
    ours.float()(torch.randn(2, 3, 32, 32)).sum().backward()
    assert all(param.grad is not None for param in ours.parameters())


OTHERS = {
    'registers': dict(reg_tokens=2),
    'a norm before': dict(pre_norm=True),
    'normalised queries': dict(qk_norm=True),
    'another activation': dict(act_layer=nn.SiLU),
    'pooling by attention': dict(global_pool='map'),
    'no positions': dict(pos_embed='none'),
    'positions without the class token': dict(no_embed_class=True),
}


@pytest.mark.parametrize('options', OTHERS.values(), ids=list(OTHERS))
def test_others_are_refused(options):
    with pytest.raises(UserError, match='is no plain ViT, so it cannot be'):
        clustr_mm.thin(timm_vit(**options))


def test_no_vits_are_refused():
    with pytest.raises(UserError, match='Linear cannot be thinned: give a Vi'):
        clustr_mm.thin(nn.Linear(3, 3))
    with pytest.raises(ValueError, match='at block 12, but'):
        clustr_mm.thin(
            timm_vit(), [dict(type='MergedTokens', block=12, merge=0.1)]
        )
