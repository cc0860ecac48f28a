"""Pictures one patch wide in half precision, with memory full of NaN.

What is read before it was written is then NaN, instead of whatever was there.
On processors with AMX, oneDNN's strided convolutions read such memory when
their output is a column, so that none of these may ever be asked for.
"""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from clustr_mm.backbones.hvt import HVT
from clustr_mm.necks import SimpleFPN
from tests import tiny_models
from tests.tiny_models import SMALL, clustr
from tests.torch_features import float16

# In bytes, in steps of an eighth or so; Python has a place of its own for what
# is smaller, and the system hands out what is larger full of zeros.
BLOCKS = [2**i * part // 8 for i in range(9, 17) for part in range(8, 16)]
ATEN = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)


class PoisonedMemory(TorchDispatchMode):
    """Fill freed memory with NaN before each operation."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        # Numbers of all types are NaN if all their bits are set.
        blocks = [b'\xff' * size for size in BLOCKS]
        del blocks
        return function(*args, **(kwargs or {}))


class StridedConvolutions(TorchDispatchMode):
    """Note the coarser map of each strided convolution in half precision."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if function is ATEN.convolution.default:
            fmap, weight, _, stride, _, _, transposed = args[:7]
            coarse = fmap if transposed else out
        elif function is ATEN.convolution_backward.default:
            grad, fmap, weight, _, stride, _, _, transposed = args[:8]
            coarse = fmap if transposed else grad
        else:
            assert 'conv' not in str(function)
            return out
        if max(stride) > 1 and weight.dtype in HALVES:
            self.shapes.append(tuple(coarse.shape[2:]))
        return out


def build(name, **kwargs):
    return tiny_models.build(name, out_type='featmap', **kwargs)


def with_pyramid():
    vit = build('dense')
    return nn.Sequential(vit, SimpleFPN(48, 16, in_stride=4, strides=(1, 2)))


PLAIN = ['dense', 'hvt-conv', 'wkmedoids', 'conv', 'evit', 'dynamicvit']
PLAIN += ['tome', 'dynamic-lvvit']
MODELS = {
    **{name: partial(build, name) for name in PLAIN},
    # Whose stem has a column, too.
    'lvvit': partial(build, 'lvvit', patch_size=2),
    'hvt-2d-conv': lambda: HVT(
        **SMALL,
        num_stages=3,
        dims=2,
        op='conv',
        out_type='featmap',
    ),
    'simple-fpn': with_pyramid,
    'clustr': clustr,
    'clustr-sra': partial(clustr, attention='sra'),
    'clustr-sra-knn': partial(clustr, attention='sra_knn', num_keys=3),
}


def step(name, dtype, autocast, size):
    """Outputs and gradients for a narrow picture."""
    # Nobody trains in half precision alone.
    model, img = MODELS[name]().train(autocast), torch.randn(2, 3, *size)
    if not autocast:
        model, img = model.to(dtype), img.to(dtype)
    img.requires_grad_()
    with torch.autocast('cpu', dtype, enabled=autocast):
        outs = model(img)
    sum(out.float().square().mean() for out in outs).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*outs, img.grad, *gradients]


@pytest.mark.parametrize('size', [(72, 2), (2, 72)], ids=['high', 'wide'])
@pytest.mark.parametrize('autocast', [False, True], ids=['cast', 'autocast'])
@pytest.mark.parametrize('dtype', [torch.bfloat16, float16])
@pytest.mark.parametrize('name', MODELS)
def test_only_written_memory_is_read(name, dtype, autocast, size):
    with StridedConvolutions() as convolutions, PoisonedMemory():
        results = step(name, dtype, autocast, size)
    assert all(result.isfinite().all() for result in results)
    # Whatever the processor.
    assert convolutions.shapes
    for height, *width in convolutions.shapes:
        assert width != [1] or height == 1
