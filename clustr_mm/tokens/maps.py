"""Tokens as a map and back, without moving them.

The tokens of a map lie one after the other, each with all of its channels,
which torch calls channels last. Convolutions take it as it is, but with a
single image only if the strides look exactly as torch itself would set them:
else they take the map for one with channels first, copy it, and so does all
that follows.
"""

import torch
from torch import Tensor


def tokens_to_map(x: Tensor, grid: tuple[int, ...]) -> Tensor:
    """[B, N, C] -> [B, C, H, W], or [B, C, N] of a sequence."""
    # Not `x.mT.unflatten(2, grid)`: of one image its first stride would be C.
    return x.unflatten(1, grid).movedim(-1, 1)


def map_to_tokens(fmap: Tensor) -> Tensor:
    """[B, C, H, W], or [B, C, N], -> [B, N, C]."""
    return fmap.flatten(2).mT


def channels_last(fmap: Tensor) -> Tensor:
    """The same map, its pixels one after the other."""
    return fmap.contiguous(memory_format=torch.channels_last)
