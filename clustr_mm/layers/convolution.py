"""Convolutions that keep to memory that was written, and to one pass over it.

On processors with AMX, oneDNN's strided convolutions in bfloat16 and float16
read memory that nobody wrote where their output is one pixel wide and several
high, so that it is NaN or not depending on what was there before. Of the same
kind is https://github.com/uxlfoundation/oneDNN/issues/5717. On all processors
such maps get a second column, of zeros, whose output is dropped: it changes
neither the first column nor a gradient.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustr_mm.tokens import products

_HALVES = (torch.bfloat16, torch.float16)


def _needs_column(x: Tensor, height: int, width: int, stride: int) -> bool:
    """Whether a strided convolution of ``x`` must not have this output."""
    return (
        x.device.type == 'cpu'
        and (x.dtype in _HALVES or products.autocasts())
        and stride > 1
        and width == 1
        and height > 1
    )


class Conv2d(nn.Conv2d):
    """A convolution, padded by a number of zeros if at all."""

    def forward(self, x: Tensor) -> Tensor:
        size = (
            (side + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
            for side, pad, dilation, kernel, stride in zip(
                x.shape[-2:],
                self.padding,
                self.dilation,
                self.kernel_size,
                self.stride,
            )
        )
        if not _needs_column(x, *size, max(self.stride)):
            return super().forward(x)
        return super().forward(F.pad(x, (0, self.stride[1])))[..., :1]


class ConvTranspose2d(nn.ConvTranspose2d):
    """A transposed convolution: its input is the output of another one."""

    def forward(self, x: Tensor) -> Tensor:
        if not _needs_column(x, *x.shape[-2:], max(self.stride)):
            return super().forward(x)
        return super().forward(F.pad(x, (0, 1)))[..., : -self.stride[1]]


class GELUConv2d(nn.Conv2d):
    """A convolution and the GELU of what it puts out.

    Where oneDNN predicts, large maps are written once and not twice, which
    takes most of the time of either.
    """

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not products.is_open(x):
            return F.gelu(super().forward(x))
        return torch.ops.mkldnn._convolution_pointwise(
            x,
            self.weight,
            self.bias,
            self.padding,
            self.stride,
            self.dilation,
            self.groups,
            'gelu',
            [],
            'none',
        )
