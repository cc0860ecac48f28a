"""EViT: expediting vision transformers by token reorganisation.

The class token's attention tells which tokens matter. The others leave
between attention and FFN, fused into one token.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clustr_mm.arguments import check_types
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.exporting import ranking
from clustr_mm.tokens.provenance import Trail, take
from .vit import ThinViT, check_reduce_at


class AttentiveTokens(Reducer):
    """Keep the tokens to which the class token pays most attention.

    Args:
        keep (float): Share of the tokens to keep. It may be changed at
            any time, as a schedule does.
        fuse (bool): Whether the others become one token, weighted by the
            class token's attention, or leave.
    """

    asks = 'class_row'

    def __init__(self, keep: float, fuse: bool):
        super().__init__()
        self.keep = keep
        self.fuse = fuse

    def forward(self, x: Tensor, trail: Trail, answer: Tensor) -> Tensor:
        num_kept = math.ceil(self.keep * x.shape[1])
        if num_kept == x.shape[1]:
            return x
        order = ranking(answer)
        kept = order[:, :num_kept]
        if not self.fuse:
            trail.keep(order, num_kept, x)
            return take(x, kept)
        trail.fuse(order, num_kept)
        weight = answer.scatter(1, kept, 0.0)
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
        if self.cls_token is None:
            raise ValueError('EViT needs the attention of a class token')
        self.place_reducers(
            {
                block: AttentiveTokens(rate, fuse)
                for block, rate in self._rates(keep, reduce_at).items()
                if rate < 1
            }
        )

    def _rates(
        self, keep: float | Sequence[float], reduce_at: Sequence[int] | None
    ) -> dict[int, float]:
        """Share of its tokens that each of these blocks keeps."""
        depth = self.num_layers
        if isinstance(keep, (int, float)):
            if reduce_at is None:
                reduce_at = [depth * quarter // 4 for quarter in (1, 2, 3)]
            else:
                check_reduce_at(reduce_at)
            rates = dict.fromkeys(reduce_at, keep)
        elif len(keep) == depth:
            rates = dict(enumerate(keep))
        else:
            raise ValueError(
                f'keep has {len(keep)} entries, but there are {depth} blocks'
            )
        for rate in rates.values():
            if not 0 <= rate <= 1:
                raise ValueError(f'keep is a share from 0 to 1, not {rate}')
        return rates
