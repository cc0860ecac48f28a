"""EViT: expediting vision transformers by token reorganisation.

The class token's attention tells which tokens matter. The others leave
between attention and FFN, fused into one token.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clustr_mm.arguments import check_shares, check_types
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.compiling import ranking
from clustr_mm.tokens.trail import Trail, take
from .vit import ThinViT, check_per_block, check_reduce_at


@MODELS.register_module()
class AttentiveTokens(Reducer):
    """Keep the tokens to which the class token pays most attention.

    Args:
        keep (float): Share of the tokens to keep. It may be changed at
            any time, as a schedule does.
        fuse (bool): Whether the others become one token, weighted by the
            class token's attention, or leave.
        trunk: Arguments of :class:`Reducer`.
    """

    statistic = 'class_row'

    @check_types
    def __init__(self, keep: float, fuse: bool = True, **trunk):
        super().__init__(**trunk)
        check_shares(keep=keep)
        self.keep = keep
        self.fuse = fuse

    def forward(self, x: Tensor, trail: Trail, class_row: Tensor) -> Tensor:
        num_kept = math.ceil(self.keep * x.shape[1])
        if num_kept == x.shape[1]:
            return x
        order = ranking(class_row)
        kept = order[:, :num_kept]
        if not self.fuse:
            trail.select(order, num_kept, x)
            return take(x, kept)
        trail.fuse(order, num_kept)
        weight = class_row.scatter(1, kept, 0.0)
        fused = weight[:, None].to(x.dtype) @ x
        return torch.cat([take(x, kept), fused], 1)


@MODELS.register_module()
class EViT(ThinViT):
    """Vision transformer that fuses inattentive tokens.

    Args:
        arch (str | dict): See :class:`ThinViT`.
        keep (float | Sequence[float]): Share of its tokens, from 0 to
            1, that a block keeps: one for all ``reduce_at``, or one for
            each block of the network.
        reduce_at (Sequence[int], optional): Where a single ``keep``
            applies. By default in the blocks that follow a quarter, half and
            three quarters of the network.
        fuse (bool): Whether the other tokens are fused, or leave.
        kwargs: More arguments of :class:`ThinViT`.
    """

    @check_types
    def __init__(
        self,
        arch: str | dict = 'deit-small',
        keep: float | Sequence[float] = 0.7,
        reduce_at: Sequence[int] | None = None,
        fuse: bool = True,
        **kwargs,
    ):
        super().__init__(arch, **kwargs)
        rates = self._rates(keep, reduce_at)
        own = [
            AttentiveTokens(keep=rate, fuse=fuse, block=block)
            for block, rate in rates.items()
            if rate < 1
        ]
        self.place_reducers([*own, *self.reducers])

    def _rates(
        self, keep: float | Sequence[float], reduce_at: Sequence[int] | None
    ) -> dict[int, float]:
        """Share of its tokens that each of these blocks keeps."""
        depth = self.num_layers
        if not isinstance(keep, (int, float)):
            check_per_block('keep', keep, depth)
            rates = dict(enumerate(keep))
        elif reduce_at is None:
            quarters = [depth * quarter // 4 for quarter in (1, 2, 3)]
            rates = dict.fromkeys(quarters, keep)
        else:
            check_reduce_at(reduce_at, depth)
            rates = dict.fromkeys(reduce_at, keep)
        for rate in rates.values():
            check_shares(keep=rate)
        return rates
