"""ToMe: token merging, which needs no training.

Between attention and FFN of every block, the tokens whose keys are most alike
become one, and attention counts a token as often as it has patches.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clustr_mm.arguments import check_shares, check_types
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.compiling import ranking
from clustr_mm.tokens.merging import weighted_sums
from clustr_mm.tokens.trail import Trail, inverse
from .vit import ThinViT, check_per_block, vit_arch

_NUM_STEPS = 2**17  # of a similarity between 0 and 1


@MODELS.register_module()
class MergedTokens(Reducer):
    """Merge pairs of tokens whose keys are alike.

    Args:
        merge (float): Tokens to merge into others, as a share of the image's
            patches. No more than half of the tokens are.
        trunk: Arguments of :class:`Reducer`.
    """

    statistic = 'keys'
    # Tokens are averaged by their numbers of patches.
    needs_trail = True

    @check_types
    def __init__(self, merge: float, **trunk):
        super().__init__(**trunk)
        check_shares(merge=merge)
        self.merge = merge

    def forward(self, x: Tensor, trail: Trail, keys: Tensor) -> Tensor:
        num_tokens = x.shape[1]
        num_merged = round(self.merge * trail.num_patches)
        num_merged = min(num_merged, num_tokens // 2)
        if not num_merged:
            return x
        labels = match(keys, num_merged, self.with_cls_token)
        num_left = num_tokens - num_merged
        total, sizes = weighted_sums(x, labels, num_left, trail.sizes(x))
        trail.merge(labels, num_left, sizes[..., 0])
        return (total / sizes).to(x.dtype)


@torch.no_grad()
def match(
    keys: Tensor, num_merged: int, with_cls_token: bool = True
) -> Tensor:
    """Bipartite soft matching (section 3).

    Every other token looks for its most similar partner among the rest, and
    the ``num_merged`` most similar pairs are merged.

    Args:
        keys (Tensor): What tokens are compared by, [B, N, D].
        num_merged (int): Number of pairs, at most N // 2.
        with_cls_token (bool): Whether there is a class token besides.

    Returns:
        Tensor: The new number of each token, [B, N]: those that found no
        partner come first, those looked at follow.
    """
    # As published, where the first token, if there is one the class token,
    # begins the set that looks.
    looked_at, looking = slice(0, None, 2), slice(1, None, 2)
    if not with_cls_token:
        looked_at, looking = looking, looked_at
    with torch.autocast(keys.device.type, enabled=False):
        keys = F.normalize(keys.float(), dim=-1)
        similarity = keys[:, looking] @ keys[:, looked_at].mT
    # What may differ by a rounding error alone is equal, and the first of
    # equals is chosen, so that identical tokens merge alike on all machines.
    similarity, partner = similarity.mul(_NUM_STEPS).round().max(2)
    rank = inverse(ranking(similarity))
    stays = rank >= num_merged
    # Who stays is sorted by similarity, or by place for a class token's sake.
    number = stays.cumsum(1) - 1 if with_cls_token else rank - num_merged
    num_staying = partner.shape[1] - num_merged
    num_left = keys.shape[1] - num_merged
    labels = torch.empty(keys.shape[:2], dtype=torch.long, device=keys.device)
    labels[:, looking] = torch.where(stays, number, partner + num_staying)
    labels[:, looked_at] = torch.arange(
        num_staying, num_left, device=keys.device
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
        super().__init__(arch, carry=carry, **kwargs)
        num_patches = math.prod(self.grid)
        own = [
            MergedTokens(
                merge=min(number / num_patches, 1),
                block=block,
                with_cls_token=self.cls_token is not None,
            )
            for block, number in enumerate(self._numbers(merge, schedule))
            if number
        ]
        self.place_reducers([*own, *self.reducers])

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
        check_per_block('merge', merge, depth)
        if min(merge) < 0:
            raise ValueError(
                f'merge counts tokens from 0 on, not {min(merge)}'
            )
        return merge
