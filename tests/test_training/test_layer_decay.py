"""Learning rates by depth, in the scope of each toolbox."""

import pytest
import torch
from mmcv.ops import DeformConv2dPack
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope

import clustr_mm.training  # noqa: F401
from clustr_mm.backbones import ThinViT
from tests.tiny_models import TRAINED

RATE = 0.5


class Model(torch.nn.Module):
    def __init__(self, backbone):
        super().__init__()
        self.backbone = backbone
        self.head = torch.nn.Linear(32, 2)


def learning_rates(model, **paramwise):
    cfg = dict(
        type='OptimWrapper',
        constructor='LayerDecayConstructor',
        optimizer=dict(type='AdamW', lr=1.0, weight_decay=0.1),
        paramwise_cfg=dict(
            layer_decay_rate=RATE, norm_decay_mult=0.0, **paramwise
        ),
    )
    optimizer = build_optim_wrapper(model, cfg).optimizer
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        names[id(p)]: (group['lr'], group['weight_decay'])
        for group in optimizer.param_groups
        for p in group['params']
    }


@pytest.mark.parametrize(
    'scope', ['mmpretrain', 'mmseg', 'mmdet', 'mmpose', 'mmengine']
)
def test_rates(scope):
    if scope != 'mmengine':
        pytest.importorskip(scope)
    model = Model(ThinViT(**TRAINED))
    with DefaultScope.overwrite_default_scope(scope):
        found = learning_rates(model)
    assert set(found) == {name for name, _ in model.named_parameters()}
    assert found['head.weight'] == (1, 0.1)
    assert found['backbone.norm.weight'] == (1, 0)
    assert found['backbone.blocks.3.mlp.fc1.weight'] == (RATE, 0.1)
    assert found['backbone.blocks.0.mlp.fc1.weight'] == (RATE**4, 0.1)
    assert found['backbone.patch_embed.proj.weight'] == (RATE**5, 0.1)
    assert found['backbone.pos_embed'] == (RATE**5, 0.1)


def test_custom_keys_go_along():
    model = Model(ThinViT(**TRAINED))
    found = learning_rates(
        model,
        custom_keys={
            'head': dict(lr_mult=10),
            'pos_embed': dict(decay_mult=0),
        },
    )
    assert found['head.weight'] == (10, 0.1)
    assert found['backbone.pos_embed'] == (RATE**5, 0)


def test_offsets_of_deformable_convolutions_have_a_rate_of_their_own():
    """As with MMEngine's constructor, from which all options come."""
    model = Model(ThinViT(**TRAINED))
    model.neck = DeformConv2dPack(4, 4, 3)
    found = learning_rates(model, dcn_offset_lr_mult=0.1)
    assert found['neck.conv_offset.weight'] == (pytest.approx(0.1), 0.1)
    assert found['neck.weight'] == (1, 0.1)


def test_backbone_without_depths():
    model = Model(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match='Linear does not know'):
        learning_rates(model)
