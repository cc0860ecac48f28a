"""Matrix products by oneDNN.

On a CPU torch leaves products in float32 to MKL. MKL uses half the width of
the vector units of AMD's newer processors, and anywhere it is slow for few
columns and many rows. oneDNN is asked by what torch compiles models to and
computes convolutions by.

Who computes depends on the processor and on the shapes alone, so that results
repeat. The environment variable ``CLUSTR_MM_PRODUCTS``, ``mkl`` or ``onednn``,
overrules it.
"""

import os
from functools import cache

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode

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

    In training only where it is preferred for all products, gradients being
    some of other shapes.

    Args:
        x (Tensor): The rows.
        num_columns (int, optional): Columns of the result, or None if there
            are several products side by side, which have no gradient.
    """
    return is_open(x) and _prefers_onednn(
        x.numel() // x.shape[-1], num_columns
    )


def is_open(x: Tensor) -> bool:
    """Whether oneDNN may be asked for what is computed of ``x``.

    Not where somebody wants to know what that is, or wants it in another
    type: a compiler, a tracer, a counter of operators, a transform, autocast.
    """
    return (
        x.device.type == 'cpu'
        and x.dtype == torch.float32
        and not is_compiling()
        and not torch.jit.is_tracing()
        and _get_current_dispatch_mode() is None
        and peek_interpreter_stack() is None
        and not autocasts()
        and x.numel() > 0
        and _has_onednn()
    )


def autocasts() -> bool:
    """Whether a CPU computes in half precision by autocast."""
    # Before torch 2.4 it was another function.
    if hasattr(torch, 'get_autocast_dtype'):
        return torch.is_autocast_enabled('cpu')
    return torch.is_autocast_cpu_enabled()


@cache
def _has_onednn() -> bool:
    return (
        torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, '_linear_pointwise')
        and hasattr(torch.ops.mkldnn, '_convolution_pointwise')
    )


def _prefers_onednn(num_rows: int, num_columns: int | None) -> bool:
    library = _library()
    if library != 'either':
        is_differentiable = num_columns is not None
        return library == 'onednn' and (
            is_differentiable or not torch.is_grad_enabled()
        )
    return (
        num_columns is not None
        and not torch.is_grad_enabled()
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
    rows = x.reshape(-1, x.shape[-1])
    product = _Linear.apply if torch.is_grad_enabled() else _linear
    return product(rows, weight, bias).view(*x.shape[:-1], -1)


def _linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(
        rows, weight, bias, 'none', [], ''
    )


class _Linear(torch.autograd.Function):
    """Gradients, of any order, are products of the same kind."""

    @staticmethod
    def forward(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _linear(rows, weight, bias)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        for_rows, for_weight, for_bias = ctx.needs_input_grad
        return (
            linear(grad, weight.T, None) if for_rows else None,
            linear(grad.T, rows.T, None) if for_weight else None,
            grad.sum(0) if for_bias else None,
        )


def batched_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x`` [B, T, C] times ``weight`` [B, N, C] plus ``bias`` [B, N].

    Returns:
        Tensor: [T, B, N], the order in which a convolution of B groups
        leaves it.
    """
    batch, height, channels = x.shape
    # A column of pixels, channels last.
    column = x.transpose(0, 1).reshape(1, height, 1, batch * channels)
    # As `conv2d` asks MKL, if there is one thread.
    out = torch.mkldnn_convolution(
        column.permute(0, 3, 1, 2),
        weight.flatten(0, 1)[..., None, None],
        bias.flatten(),
        padding=(0, 0),
        stride=(1, 1),
        dilation=(1, 1),
        groups=batch,
    )
    return out.permute(0, 2, 3, 1).view(height, batch, -1)
