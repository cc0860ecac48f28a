"""Matrix products by oneDNN, for which torch has to be asked in convolutions.

On a CPU torch leaves products in float32 to MKL, which on processors that are
not Intel's uses only a part of the vector units, and convolutions to oneDNN,
which uses all of them. A linear layer is a 1 x 1 convolution.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .exporting import is_compiling


def is_faster(x: Tensor) -> bool:
    """Whether to prefer oneDNN for a product of ``x``.

    Not in training, as the gradients of convolutions are slow, nor while
    compiling or exporting, where the graph should say what is meant.
    """
    return (
        not is_compiling()
        and not torch.is_grad_enabled()
        and x.device.type == 'cpu'
        and x.dtype == torch.float32
        and x.numel() > 0
        and torch.backends.mkl.is_available()
        and torch.backends.mkldnn.is_available()
    )


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
