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

from clustr_mm.arguments import check_types
from clustr_mm.layers.linear import Linear
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.exporting import ranking
from clustr_mm.tokens.provenance import Trail, take
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


class PredictedTokens(Reducer):
    """Keep the tokens that a predictor rates highest.

    Args:
        embed_dims (int): Number of channels.
        keep (float): Share of the image's patches that stay.
    """

    place = 'before'

    def __init__(self, embed_dims: int, keep: float):
        super().__init__()
        self.keep = keep
        self.predictor = Predictor(embed_dims)

    def forward(
        self, x: Tensor, trail: Trail, answer: Tensor | None = None
    ) -> Tensor:
        if self.training:
            trail.decisions.append(self._decide(x, trail))
            return x
        num_kept = int(self.keep * trail.num_patches)
        # A tiny image shall not lose all its patches to rounding.
        if self.keep:
            num_kept = max(num_kept, 1)
        if num_kept >= x.shape[1]:
            return x
        order = ranking(self.predictor(x)[..., 0])
        trail.keep(order, num_kept, x)
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
        shares = self._shares(keep, reduce_at)
        self.place_reducers(
            {
                block: PredictedTokens(self.embed_dims, share)
                for block, share in shares.items()
            }
        )

    def attention_inputs(self, x: Tensor, trail: Trail) -> dict:
        if not trail.decisions:
            return {}
        policy = trail.decisions[-1]
        return {'policy': F.pad(policy, (self.num_extra_tokens, 0), value=1)}

    def forward_train(
        self, img: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """What the training losses are made of.

        Returns:
            tuple[Tensor, Tensor, list[Tensor]]: The class token [B, C], the
            patch tokens [B, N, C], and for each stage which of these stay,
            [B, N]; after the last one, these stand for the whole image.
        """
        x, trail = self.embed(img, track=False)
        for i, block in enumerate(self.blocks):
            x = self.run_block(i, block, x, trail)
        x = self.norm(x)
        return x[:, 0], x[:, 1:], trail.decisions

    def _shares(
        self,
        keep: float | Sequence[float],
        reduce_at: Sequence[int] | None,
    ) -> dict[int, float]:
        """Share of the patches that stay before these blocks."""
        depth = self.num_layers
        if isinstance(keep, (int, float)):
            if not 0 <= keep <= 1:
                raise ValueError(f'keep is a share from 0 to 1, not {keep}')
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
        check_reduce_at(reduce_at)
        return dict(zip(reduce_at, keep, strict=True))
