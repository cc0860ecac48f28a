"""Convolutions that keep to memory that was written.

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

_HALVES = (torch.bfloat16, torch.float16)


def _autocasts() -> bool:
    """Whether convolutions on a CPU are in half precision by autocast."""
    # Before torch 2.4 it was another function.
    if hasattr(torch, 'get_autocast_dtype'):
        return torch.is_autocast_enabled('cpu')
    return torch.is_autocast_cpu_enabled()


def _needs_column(x: Tensor, height: int, width: int, stride: int) -> bool:
    """Whether a strided convolution of ``x`` must not have this output."""
    return (
        x.device.type == 'cpu'
        and (x.dtype in _HALVES or _autocasts())
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
