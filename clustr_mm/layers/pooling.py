"""Pooling of the token sequence or of the map that it is."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustr_mm.tokens.provenance import (
    Trail,
    resize_pooled_positions,
    resize_positions,
)
from .reducer import Reducer


class TokenPool(Reducer):
    """Pool tokens after a block.

    Args:
        embed_dims (int): Number of channels.
        op (str): ``'max'``, ``'avg'`` or ``'conv'``.
        dims (int): 1 to pool the sequence, 2 to pool the map.
        kernel_size (int): Tokens that are pooled along a dimension.
        stride (int): Tokens between two pools.
        padding (int): Tokens of padding on either side.
        grid (tuple[int, int], optional): Patches of an image of the usual
            size. With it, pooled tokens get position embeddings of their own.
        shape (tuple[int, ...], optional): Shape of the tokens of such an
            image before they are pooled, if not of all patches.
        init_cfg (dict, optional): Initialisation.
    """

    place = 'after'

    def __init__(
        self,
        embed_dims: int,
        op: str = 'max',
        dims: int = 1,
        kernel_size: int = 3,
        stride: int = 2,
        padding: int = 0,
        grid: tuple[int, int] | None = None,
        shape: tuple[int, ...] | None = None,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        if dims not in (1, 2):
            raise ValueError(f'dims must be 1 or 2, not {dims!r}')
        pools = {
            'max': (nn.MaxPool1d, nn.MaxPool2d),
            'avg': (nn.AvgPool1d, nn.AvgPool2d),
            'conv': (nn.Conv1d, nn.Conv2d),
        }
        if op not in pools:
            raise ValueError(f'op must be one of {list(pools)}, not {op!r}')
        self.dims, self.kernel_size = dims, kernel_size
        self.stride, self.padding = stride, padding
        channels = (embed_dims, embed_dims) if op == 'conv' else ()
        kwargs = {'stride': stride, 'padding': padding}
        if op == 'avg':
            kwargs['count_include_pad'] = False
        self.pool = pools[op][dims - 1](*channels, kernel_size, **kwargs)
        self.grid, self.pos_embed = grid, None
        if grid is not None:
            self.shape = self.pooled_shape(shape or self._first_shape(grid))
            pos_embed = torch.empty(1, math.prod(self.shape), embed_dims)
            nn.init.trunc_normal_(pos_embed, std=0.02)
            self.pos_embed = nn.Parameter(pos_embed)

    def _first_shape(self, grid: tuple[int, int]) -> tuple[int, ...]:
        return (math.prod(grid),) if self.dims == 1 else tuple(grid)

    def pooled_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the tokens after pooling, at least 1 a dimension."""
        return tuple(
            max(n + 2 * self.padding - self.kernel_size, 0) // self.stride + 1
            for n in shape
        )

    def forward(
        self, x: Tensor, trail: Trail, answer: Tensor | None = None
    ) -> Tensor:
        shape = trail.pooled or self._first_shape(trail.grid)
        x = x.mT.unflatten(2, shape)
        # A dimension shorter than the kernel is pooled as a whole.
        least = self.kernel_size - 2 * self.padding
        if min(shape) < least:
            pad = [(0, max(least - n, 0)) for n in reversed(shape)]
            x = F.pad(x, sum(pad, ()), mode='replicate')
        x = self.pool(x).flatten(2).mT.contiguous()
        shape = self.pooled_shape(shape)
        trail.pool(shape)
        if self.pos_embed is None:
            return x
        return x + self.resize(self.pos_embed, self.grid, trail.grid, shape)

    def resize(
        self,
        positions: Tensor,
        old: tuple[int, int],
        new: tuple[int, int],
        shape: tuple[int, ...],
    ) -> Tensor:
        """Resize position embeddings of pooled tokens to another grid.

        Args:
            positions (Tensor): Embeddings [1, M, C].
            old (tuple[int, int]): Their grid of patches.
            new (tuple[int, int]): The other one.
            shape (tuple[int, ...]): Shape of its pooled tokens.
        """
        if self.dims == 1:
            return resize_pooled_positions(positions, old, new, shape[0])
        while math.prod(old) > positions.shape[1]:
            old = self.pooled_shape(old)
        return resize_positions(positions, old, shape)

    def fit(
        self, state_dict: dict, prefix: str, grid: tuple[int, int]
    ) -> None:
        key = prefix + 'pos_embed'
        if key in state_dict and self.pos_embed is not None:
            state_dict[key] = self.resize(
                state_dict[key], grid, self.grid, self.shape
            )
