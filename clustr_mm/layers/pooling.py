"""Pooling of the token sequence or of the map that it is."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clustr_mm.arguments import check_types
from clustr_mm.registry import MODELS
from clustr_mm.tokens.maps import map_to_tokens, tokens_to_map
from clustr_mm.tokens.trail import (
    Trail,
    resize_pooled_positions,
    resize_positions,
)
from .convolution import Conv2d
from .reducer import Reducer


class MaxPool1d(nn.MaxPool1d):
    """Max pooling of a sequence, as of a map that is one token high.

    Torch's own wants to know how long the sequence is, so that
    `torch.compile` would begin anew for each length.
    """

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = (1, self.kernel_size), (1, self.stride)
        pooled = F.max_pool2d(
            x.unsqueeze(-2), kernel, stride, padding=(0, self.padding)
        )
        return pooled.squeeze(-2)


POOLS = {
    'max': (MaxPool1d, nn.MaxPool2d),
    'avg': (nn.AvgPool1d, nn.AvgPool2d),
    'conv': (nn.Conv1d, Conv2d),
}


@MODELS.register_module()
class TokenPool(Reducer):
    """Pool tokens after a block.

    Args:
        op (str): ``'max'``, ``'avg'`` or ``'conv'``.
        dims (int): 1 to pool the sequence, 2 to pool the map.
        kernel_size (int): Tokens that are pooled along a dimension.
        stride (int): Tokens between two pools.
        padding (int): Tokens of padding on either side.
        with_pos_embed (bool): Whether pooled tokens get position embeddings
            of their own.
        shape (Sequence[int], optional): Shape of the tokens of an image of
            the usual size before they are pooled, if not of all patches.
        trunk: Arguments of :class:`Reducer`.
    """

    place = 'after'

    @check_types
    def __init__(
        self,
        op: str = 'max',
        dims: int = 1,
        kernel_size: int = 3,
        stride: int = 2,
        padding: int = 0,
        with_pos_embed: bool = True,
        shape: Sequence[int] | None = None,
        **trunk,
    ):
        super().__init__(**trunk)
        if dims not in (1, 2):
            raise ValueError(f'dims must be 1 or 2, not {dims!r}')
        if op not in POOLS:
            raise ValueError(f'op must be one of {list(POOLS)}, not {op!r}')
        self.dims, self.kernel_size = dims, kernel_size
        self.stride, self.padding = stride, padding
        channels = (self.embed_dims,) * 2 if op == 'conv' else ()
        kwargs = {'stride': stride, 'padding': padding}
        if op == 'avg':
            kwargs['count_include_pad'] = False
        self.pool = POOLS[op][dims - 1](*channels, kernel_size, **kwargs)
        self.pos_embed = None
        if with_pos_embed:
            shape = tuple(shape or self._first_shape(self.grid))
            self.shape = self.pooled_shape(shape)
            pos_embed = torch.empty(1, math.prod(self.shape), self.embed_dims)
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
        self, x: Tensor, trail: Trail, statistic: None = None
    ) -> Tensor:
        old = trail.pooled or self._first_shape(trail.grid)
        if len(old) != self.dims:
            raise ValueError(
                'tokens cannot be pooled as a sequence and as a map, one '
                'after the other'
            )
        shape = self.pooled_shape(old)
        trail.pool(shape)
        x = tokens_to_map(x, old)
        # A dimension shorter than the kernel is pooled as a whole.
        least = self.kernel_size - 2 * self.padding
        if min(old) < least:
            pad = [(0, max(least - n, 0)) for n in reversed(old)]
            x = F.pad(x, sum(pad, ()), mode='replicate')
        x = map_to_tokens(self.pool(x)).contiguous()
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

    def resize_weights(
        self, state_dict: dict, prefix: str, grid: tuple[int, int]
    ) -> None:
        key = prefix + 'pos_embed'
        if key in state_dict and self.pos_embed is not None:
            state_dict[key] = self.resize(
                state_dict[key], grid, self.grid, self.shape
            )
