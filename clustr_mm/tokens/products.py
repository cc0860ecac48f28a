"""Matrix products by oneDNN, for which torch has to be asked in convolutions.

On a CPU torch leaves products in float32 to MKL, and convolutions to oneDNN.
A linear layer is a 1 x 1 convolution. MKL uses half the width of the vector
units of AMD's newer processors, and anywhere it is slow for few columns and
many rows.

Who computes depends on the processor and on the shapes alone, so that results
repeat. The environment variable ``CLUSTR_MM_PRODUCTS``, ``mkl`` or ``onednn``,
overrules it.
"""

import os
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from . import processor
from .compiling import is_compiling

VARIABLE = 'CLUSTR_MM_PRODUCTS'
# AMD's Zen 5, the first with vector units of 512 bits, on which oneDNN is up
# to twice as fast. Zen 4 has half of that, and nothing is gained.
_WIDE_FAMILY = 26
# oneDNN is 15 to 45 % faster for 64 and 128 columns and 6272 rows or more, on
# Zen 4 as on a Xeon, where it is up to a third slower for the widths of ViTs.
_FEW_COLUMNS, _MANY_ROWS = 128, 4096


def is_faster(x: Tensor, num_columns: int | None = None) -> bool:
    """Whether to prefer oneDNN for a product of ``x`` [..., C].

    Not in training, as the gradients of convolutions are slow, nor while
    compiling or exporting, where the graph should say what is meant.

    Args:
        x (Tensor): The rows.
        num_columns (int, optional): Columns of the result, or None if there
            are several products side by side.
    """
    return (
        not is_compiling()
        and not torch.is_grad_enabled()
        and x.device.type == 'cpu'
        and x.dtype == torch.float32
        and x.numel() > 0
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and _prefers_onednn(x.numel() // x.shape[-1], num_columns)
    )


def _prefers_onednn(num_rows: int, num_columns: int | None) -> bool:
    library = _library()
    if library != 'either':
        return library == 'onednn'
    return (
        num_columns is not None
        and num_columns <= _FEW_COLUMNS
        and num_rows >= _MANY_ROWS
    )


@cache
def _library() -> str:
    """Who computes on this machine: 'mkl', 'onednn', or 'either'."""
    asked = os.environ.get(VARIABLE)
    if asked:
        if asked not in ('mkl', 'onednn'):
            raise ValueError(
                f'{VARIABLE} must be mkl or onednn, but is {asked!r}: unset '
                'it, and the faster one is taken'
            )
        return asked
    is_wide = processor.family() >= _WIDE_FAMILY
    is_amd = processor.vendor() == 'AuthenticAMD'
    return 'onednn' if is_amd and is_wide else 'either'


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What `F.linear` computes."""
    out = batched_linear(x.reshape(1, -1, x.shape[-1]), weight[None], bias)
    return out.view(*x.shape[:-1], -1)


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``x`` [B, T, C] times ``weight`` [B, N, C] plus ``bias`` [B, N].

    Returns:
        Tensor: [T, B, N], the order in which a convolution of B groups
        leaves it.
    """
    batch, height, channels = x.shape
    # A column of pixels, channels last.
    column = x.transpose(0, 1).reshape(1, height, 1, batch * channels)
    out = F.conv2d(
        column.permute(0, 3, 1, 2),
        weight.flatten(0, 1)[..., None, None],
        None if bias is None else bias.flatten(),
        groups=batch,
    )
    return out.permute(0, 2, 3, 1).view(height, batch, -1)
