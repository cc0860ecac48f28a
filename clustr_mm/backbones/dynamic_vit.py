"""DynamicViT: dynamic token sparsification.

Before some blocks, a small predictor decides which tokens stay. In training
the decisions are sampled, and attention ignores the tokens that would leave;
in evaluation the best ones stay, a fixed number, and the others do leave.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from clustr_mm.arguments import check_shares, check_types
from clustr_mm.layers.linear import Linear
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.compiling import ranking
from clustr_mm.tokens.trail import Trail, take
from .vit import ThinViT, check_reduce_at


class Predictor(BaseModule):
    """Log probability of each token to stay and to leave (section 3.2)."""

    def __init__(self, embed_dims: int, init_cfg: dict | None = None):
        super().__init__(init_cfg)
        half, quarter = embed_dims // 2, embed_dims // 4
        # Local and global features, one half of the channels each.
        self.features = nn.Sequential(
            nn.LayerNorm(embed_dims),
            Linear(embed_dims, 2 * half),
            nn.GELU(),
        )
        self.score = nn.Sequential(
            Linear(2 * half, half),
            nn.GELU(),
            Linear(half, quarter),
            nn.GELU(),
            Linear(quarter, 2),
            nn.LogSoftmax(-1),
        )

    def forward(self, x: Tensor, policy: Tensor | None = None) -> Tensor:
        """Log probabilities [B, N, 2] of tokens [B, N, C].

        The global features are those of the tokens in ``policy`` [B, N].
        """
        local, total = self.features(x).chunk(2, -1)
        if policy is None:
            total = total.mean(1, keepdim=True)
        else:
            policy = policy[..., None]
            total = (total * policy).sum(1, keepdim=True)
            # In training an image may happen to keep none.
            total = total / policy.sum(1, keepdim=True).clamp_min(1)
        return self.score(torch.cat([local, total.expand_as(local)], -1))


@MODELS.register_module()
class PredictedTokens(Reducer):
    """Keep the tokens that a predictor rates highest.

    Args:
        keep (float): Share of the image's patches that stay.
        trunk: Arguments of :class:`Reducer`.
    """

    place = 'before'
    # By the loss of a task alone, the predictors would let all tokens stay.
    hooks = ({'type': 'RatioLoss'},)

    @check_types
    def __init__(self, keep: float, **trunk):
        super().__init__(**trunk)
        check_shares(keep=keep)
        self.keep = keep
        self.predictor = Predictor(self.embed_dims)

    def forward(
        self, x: Tensor, trail: Trail, statistic: None = None
    ) -> Tensor:
        if self.training:
            trail.decide(self._decide(x, trail), x)
            return x
        num_kept = int(self.keep * trail.num_patches)
        # A tiny image shall not lose all its patches to rounding.
        if self.keep:
            num_kept = max(num_kept, 1)
        if num_kept >= x.shape[1]:
            return x
        order = ranking(self.predictor(x)[..., 0])
        trail.select(order, num_kept, x)
        return take(x, order[:, :num_kept])

    def _decide(self, x: Tensor, trail: Trail) -> Tensor:
        """Sample who stays (1) or leaves (0), [B, N], of those still there."""
        so_far = trail.decisions[-1] if trail.decisions else None
        scores = self.predictor(x, so_far).float()
        stays = F.gumbel_softmax(scores, hard=True)[..., 0]
        return stays if so_far is None else stays * so_far


@MODELS.register_module()
class DynamicViT(ThinViT):
    """Vision transformer that learns which tokens to drop.

    Args:
        arch (str | dict): See :class:`ThinViT`.
        keep (float | Sequence[float]): Share of the patches that stay, from
            0 to 1, of all patches, for each of ``reduce_at``. A single
            number r stands for r, r^2, r^3.
        reduce_at (Sequence[int], optional): Blocks before which tokens
            leave. By default those after a quarter, half and three quarters
            of the network; with one stage the second of these, and with two
            the others.
        kwargs: More arguments of :class:`ThinViT`.
    """

    @check_types
    def __init__(
        self,
        arch: str | dict = 'deit-small',
        keep: float | Sequence[float] = 0.7,
        reduce_at: Sequence[int] | None = None,
        **kwargs,
    ):
        super().__init__(arch, **kwargs)
        own = predicted_tokens(self, keep, reduce_at)
        self.place_reducers([*own, *self.reducers])


def predicted_tokens(
    trunk: ThinViT,
    keep: float | Sequence[float],
    reduce_at: Sequence[int] | None,
) -> list[PredictedTokens]:
    """The reducers of a trunk, by the arguments of :class:`DynamicViT`."""
    shares = _shares(trunk.num_layers, keep, reduce_at)
    return [
        PredictedTokens(keep=share, block=block, embed_dims=trunk.embed_dims)
        for block, share in shares.items()
    ]


def _shares(
    depth: int,
    keep: float | Sequence[float],
    reduce_at: Sequence[int] | None,
) -> dict[int, float]:
    """Share of the patches that stay before these blocks."""
    if isinstance(keep, (int, float)):
        check_shares(keep=keep)
        stages = 3 if reduce_at is None else len(reduce_at)
        keep = [keep ** (stage + 1) for stage in range(stages)]
    if reduce_at is None:
        quarters = {1: [2], 2: [1, 3], 3: [1, 2, 3]}.get(len(keep))
        if quarters is None:
            raise ValueError(
                f'keep has {len(keep)} entries: say by reduce_at where '
                f'the {len(keep)} stages are'
            )
        reduce_at = [depth * quarter // 4 for quarter in quarters]
    if len(keep) != len(reduce_at):
        raise ValueError(
            f'keep has {len(keep)} entries, but there are '
            f'{len(reduce_at)} blocks in reduce_at'
        )
    left = 1
    for share in keep:
        if not 0 <= share <= left:
            raise ValueError(
                'keep are shares of all patches, from 1 to 0 and never '
                f'more than before, not {list(keep)}'
            )
        left = share
    check_reduce_at(reduce_at, depth)
    return dict(zip(reduce_at, keep, strict=True))
