"""What replaces torch's convolutions computes the same.

That it keeps to written memory is in test_backbones/test_narrow_pictures.py.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clustr_mm.layers import convolution
from clustr_mm.layers.convolution import (
    Conv2d,
    ConvTranspose2d,
    GELUConv2d,
)
from tests.torch_features import LOW_PRECISIONS

# Kernel, stride and padding, and what else there is.
CONVOLUTIONS = [
    ((7, 2, 3), {}),
    ((3, 2, 1), {'bias': False}),
    ((2, 2), {}),
    ((16, 16), {}),
    ((3, (2, 5), (1, 0)), {'dilation': 2, 'groups': 2}),
    (((1, 3), (1, 3)), {}),
    ((3, 1, 1), {}),
]


@pytest.fixture
def _anything_is_half(monkeypatch):
    """In float64 equality says more."""
    monkeypatch.setattr(convolution, '_HALVES', (torch.float64,))


def padded(module, monkeypatch):
    """How wide what reaches the convolution is, and the same module."""
    widths = []
    name = '_conv_forward' if isinstance(module, nn.Conv2d) else 'forward'
    base = type(module).__mro__[1]
    original = getattr(base, name)

    def spy(self, x, *args):
        widths.append(x.shape[-1])
        return original(self, x, *args)

    monkeypatch.setattr(base, name, spy)
    return widths


def same(ours, theirs, x):
    """Equal outputs and gradients, also of the input."""
    theirs.load_state_dict(ours.state_dict())
    found, expected = [], []
    for module, results in (ours, found), (theirs, expected):
        module.zero_grad()
        leaf = x.clone().requires_grad_()
        out = module(leaf)
        weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype)
        (out * weight.view_as(out)).sum().backward()
        results += [out, leaf.grad, *(p.grad for p in module.parameters())]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.usefixtures('_anything_is_half')
@pytest.mark.parametrize(('args', 'kwargs'), CONVOLUTIONS)
@pytest.mark.parametrize('width', [1, 2, 3, 5, 16, 19])
@pytest.mark.parametrize('height', [5, 33])
def test_convolution(args, kwargs, height, width):
    ours = Conv2d(4, 6, *args, **kwargs).double()
    theirs = nn.Conv2d(4, 6, *args, **kwargs).double()
    x = torch.randn(2, 4, height, width, dtype=torch.float64)
    try:
        theirs(x)
    except RuntimeError as error:  # the kernel is larger than the map
        with pytest.raises(RuntimeError, match=str(error)[:20]):
            ours(x)
        return
    same(ours, theirs, x)
    same(ours, theirs, x[0])


@pytest.mark.usefixtures('_anything_is_half')
@pytest.mark.parametrize(
    'kwargs',
    [
        dict(kernel_size=2, stride=2),
        dict(kernel_size=5, stride=3, padding=1, output_padding=1),
        dict(kernel_size=3, stride=(2, 3), dilation=2, bias=False),
        dict(kernel_size=3, padding=1),
    ],
)
@pytest.mark.parametrize('size', [(1, 1), (1, 4), (4, 1), (4, 2)])
def test_transposed(kwargs, size):
    ours = ConvTranspose2d(4, 6, **kwargs).double()
    theirs = nn.ConvTranspose2d(4, 6, **kwargs).double()
    same(ours, theirs, torch.randn(2, 4, *size, dtype=torch.float64))


@pytest.mark.parametrize('make', [Conv2d, ConvTranspose2d])
def test_only_columns_in_half_precision_are_padded(make, monkeypatch):
    module = make(3, 4, 2, 2)
    scale = 2 if make is Conv2d else 1
    widths = padded(module, monkeypatch)

    def seen(height, width):
        widths.clear()
        module(torch.randn(1, 3, scale * height, scale * width))
        return widths[-1] // scale

    assert seen(4, 1) == 1
    for dtype in LOW_PRECISIONS:
        with torch.autocast('cpu', dtype):
            assert [seen(4, 1), seen(1, 1), seen(1, 4)] == [2, 1, 4]
            assert seen(4, 2) == 2
        with torch.autocast('cpu', dtype, enabled=False):
            assert seen(4, 1) == 1


@pytest.mark.parametrize('make', [Conv2d, ConvTranspose2d])
@pytest.mark.parametrize('stride', [(2, 1), (1, 2)])
def test_columns_of_strides_in_one_direction_are_padded(
    make, stride, monkeypatch
):
    module = make(3, 4, 1, stride)
    widths = padded(module, monkeypatch)
    with torch.autocast('cpu', torch.bfloat16):
        module(torch.randn(1, 3, 4, 1))
    assert widths[-1] > 1


@pytest.mark.parametrize('make', [Conv2d, ConvTranspose2d])
def test_compiles(make):
    module = make(3, 4, 2, 2)
    compiled = torch.compile(module, fullgraph=True, backend='eager')
    for size in (8, 2), (2, 8), (8, 3):
        x = torch.randn(1, 3, *size)
        for enabled in True, False:
            with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
                torch.testing.assert_close(compiled(x), module(x))


@pytest.mark.parametrize('threads', [1, 2])
@pytest.mark.parametrize(
    'layout', [torch.contiguous_format, torch.channels_last]
)
@pytest.mark.parametrize('size', [(9, 7), (1, 1), (1, 5), (40, 30)])
def test_gelu_in_one_pass(size, layout, threads):
    module = GELUConv2d(32, 32, 3, padding=1, groups=32)
    x = torch.randn(2, 32, *size).to(memory_format=layout)
    expected = F.gelu(nn.Conv2d.forward(module, x))
    assert torch.equal(module(x), expected)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            found = module(x)
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
            assert module(x[:0]).shape == x[:0].shape
            assert module.double()(x.double()).dtype == torch.float64
    finally:
        torch.set_num_threads(before)
    if min(size) > 1:
        assert found.is_contiguous(memory_format=layout)
