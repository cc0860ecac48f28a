"""ToMe: token merging, which needs no training.

Between attention and FFN of every block, the tokens whose keys are most alike
become one, and attention counts a token as often as it has patches.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clustr_mm.arguments import check_types
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.exporting import ranking
from clustr_mm.tokens.merging import cluster_mean
from clustr_mm.tokens.provenance import Trail
from .token_pooling import TokenPoolingDeiT
from .vit import ThinViT, vit_arch

_NUM_STEPS = 2**17  # of a similarity between 0 and 1


class MergedTokens(Reducer):
    """Merge pairs of tokens whose keys are alike.

    Args:
        merge (float): Tokens to merge into others, as a share of the image's
            patches. No more than half of the tokens are.
    """

    asks = 'keys'

    def __init__(self, merge: float):
        super().__init__()
        self.merge = merge

    def forward(self, x: Tensor, trail: Trail, answer: Tensor) -> Tensor:
        num_tokens = x.shape[1]
        num_merged = round(self.merge * trail.num_patches)
        num_merged = min(num_merged, num_tokens // 2)
        if not num_merged:
            return x
        labels = match(answer, num_merged)
        num_left = num_tokens - num_merged
        # In float32 at least, like the sizes.
        merged = cluster_mean(x, labels, num_left, trail.sizes(x))
        trail.merge(labels, num_left)
        return merged.to(x.dtype)


@torch.no_grad()
def match(keys: Tensor, num_merged: int) -> Tensor:
    """Bipartite soft matching (section 3).

    Every other token looks for its most similar partner among the rest, and
    the ``num_merged`` most similar pairs are merged.

    Args:
        keys (Tensor): What tokens are compared by, [B, N, D].
        num_merged (int): Number of pairs, at most N // 2.

    Returns:
        Tensor: The new number of each token, [B, N]: those that found no
        partner keep their order and come first, those looked at follow.
    """
    # As published, where the class token begins the set that looks.
    looked_at, looking = slice(0, None, 2), slice(1, None, 2)
    with torch.autocast(keys.device.type, enabled=False):
        keys = F.normalize(keys.float(), dim=-1)
        similarity = keys[:, looking] @ keys[:, looked_at].mT
    # What may differ by a rounding error alone is equal, and the first of
    # equals is chosen, so that identical tokens merge alike on all machines.
    similarity, partner = similarity.mul(_NUM_STEPS).round().max(2)
    leaving = ranking(similarity)[:, :num_merged]
    leaves = torch.zeros_like(partner).scatter(1, leaving, 1)
    num_staying = partner.shape[1] - num_merged
    staying = (1 - leaves).cumsum(1) - 1
    labels = torch.empty(keys.shape[:2], dtype=torch.long, device=keys.device)
    labels[:, looking] = torch.where(
        leaves.bool(), num_staying + partner, staying
    )
    labels[:, looked_at] = num_staying + torch.arange(
        keys[:, looked_at].shape[1], device=keys.device
    )
    return labels


@MODELS.register_module()
class ToMe(ThinViT):
    """Vision transformer that merges similar tokens.

    Args:
        arch (str | dict): See :class:`ThinViT`.
        merge (int | Sequence[int]): How many tokens each block merges into
            others (r), for an image of ``img_size``; in proportion for
            others. One number for all blocks, or one for each.
        schedule (str): Whether a single number is merged by each block
            (``'constant'``), or is the mean of numbers that fall to 0
            (``'decreasing'``).
        carry (bool): Whether attention counts a token as often as it has
            patches, by adding the logarithm to its logits.
        kwargs: More arguments of :class:`ThinViT`.
    """

    arch_zoo = {
        **ThinViT.arch_zoo,
        'vit-large': vit_arch(1024, 24, 16),
        'vit-huge': vit_arch(1280, 32, 16, patch_size=14),
    }

    @check_types
    def __init__(
        self,
        arch: str | dict = 'deit-small',
        merge: int | Sequence[int] = 13,
        schedule: str = 'constant',
        carry: bool = True,
        **kwargs,
    ):
        super().__init__(arch, **kwargs)
        self.carry = carry
        num_patches = self.pos_embed.shape[1] - self.num_extra_tokens
        self.place_reducers(
            {
                block: MergedTokens(number / num_patches)
                for block, number in enumerate(self._numbers(merge, schedule))
                if number
            }
        )

    @property
    def needs_trail(self) -> bool:
        """Always: tokens are averaged by their numbers of patches."""
        return True

    # Proportional attention (eq. 1) is what Token Pooling carries.
    attention_inputs = TokenPoolingDeiT.attention_inputs

    def _numbers(
        self, merge: int | Sequence[int], schedule: str
    ) -> Sequence[int]:
        """How many tokens each block merges."""
        depth = self.num_layers
        if schedule not in ('constant', 'decreasing'):
            raise ValueError(
                "schedule must be 'constant' or 'decreasing', not "
                f'{schedule!r}'
            )
        if isinstance(merge, int):
            if schedule == 'constant':
                merge = [merge] * depth
            else:
                last = max(depth - 1, 1)
                merge = [2 * merge * (last - i) // last for i in range(depth)]
        if len(merge) != depth:
            raise ValueError(
                f'merge has {len(merge)} entries, but there are {depth} blocks'
            )
        if min(merge) < 0:
            raise ValueError(
                f'merge counts tokens from 0 on, not {min(merge)}'
            )
        return merge
