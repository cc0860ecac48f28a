"""The pyramid from one map: its levels, its errors, its place in models."""

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

import clustr_mm.backbones  # noqa: F401
from clustr_mm.necks import SimpleFPN


@pytest.mark.parametrize('size', [(1, 1), (2, 3), (7, 5), (16, 8)])
def test_strides(size):
    neck = SimpleFPN(16, 8, num_outs=5)
    outs = neck(torch.randn(2, 16, *size))
    height, width = size
    half = [-(-side // 2) for side in size]
    assert [tuple(out.shape) for out in outs] == [
        (2, 8, 4 * height, 4 * width),
        (2, 8, 2 * height, 2 * width),
        (2, 8, height, width),
        (2, 8, *half),
        (2, 8, *[-(-side // 2) for side in half]),
    ]


def test_pooled_level_is_every_second_pixel():
    outs = SimpleFPN(16, 8, num_outs=5)(torch.randn(1, 16, 8, 8))
    assert torch.equal(outs[4], outs[3][..., ::2, ::2])


def test_levels_of_retinanet():
    neck = SimpleFPN(16, 8, strides=(8, 16, 32), num_outs=5)
    outs = neck((torch.randn(1, 16, 16, 16),))
    assert [out.shape[-1] for out in outs] == [32, 16, 8, 4, 2]


def test_another_stride():
    outs = SimpleFPN(16, 8, in_stride=8, strides=(4, 32))(
        torch.randn(1, 16, 8, 8)
    )
    assert [out.shape[-1] for out in outs] == [16, 2]


def test_channels_are_normalised():
    outs = SimpleFPN(16, 8)(torch.randn(1, 16, 4, 4))
    for out in outs:
        assert out.mean(1).abs().max() < 1e-5
        torch.testing.assert_close(
            out.var(1, correction=0),
            torch.ones_like(out[:, 0]),
            rtol=0.1,
            atol=0.1,
        )


def test_gradients_reach_everything():
    neck = SimpleFPN(16, 8, num_outs=5)
    fmap = torch.randn(1, 16, 4, 4, requires_grad=True)
    sum(out.square().sum() for out in neck(fmap)).backward()
    assert fmap.grad.abs().sum() > 0
    assert all(p.grad is not None for p in neck.parameters())


@pytest.mark.parametrize('scope', ['mmengine', 'mmseg', 'mmdet', 'mmpose'])
def test_every_toolbox_finds_it(scope):
    if scope != 'mmengine':
        pytest.importorskip(scope)
    with DefaultScope.overwrite_default_scope(scope):
        neck = MODELS.build(dict(type='SimpleFPN', in_channels=16))
    assert isinstance(neck, SimpleFPN)


@pytest.mark.parametrize(
    ('kwargs', 'inputs', 'message'),
    [
        (dict(num_outs=3), None, 'there are 4 strides'),
        (dict(strides=(4, 12)), None, 'no power of two'),
        ({}, [torch.zeros(1, 16, 4, 4)] * 2, 'gives 2'),
        ({}, [torch.zeros(1, 8, 4, 4)], r'not \[1, 8, 4, 4\]'),
        ({}, [torch.zeros(1, 16)], "out_type='featmap'"),
    ],
)
def test_errors(kwargs, inputs, message):
    with pytest.raises(ValueError, match=message):
        SimpleFPN(16, **kwargs)(inputs)
