"""Token Pooling: tokens are clustered, and the cluster centers go on.

With the selections of tokens that the paper compares it to, and its
down-sampling by convolution (appendix D).
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from clustr_mm.arguments import check_positive, check_types
from clustr_mm.layers.pooling import TokenPool
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.exporting import ranking
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from clustr_mm.tokens.provenance import Trail, take
from .vit import ThinViT, check_reduce_at

# Tables 3 to 5: at most how many tokens each block keeps, by sparsity level.
# A later block never has more than an earlier one left it.
KEEP = {
    'deit-small': [
        # Printed without an entry for the last block.
        [196, 196, 195, 194, 189, 180, 173, 173, 173, 173, 173, 173],
        [196, 195, 193, 188, 169, 140, 121, 110, 73, 38, 7, 0],
        [196, 195, 190, 177, 141, 108, 84, 69, 35, 18, 3, 0],
        [196, 194, 187, 163, 118, 85, 58, 47, 20, 12, 2, 0],
        [196, 193, 179, 142, 97, 64, 46, 34, 13, 9, 1, 0],
        [194, 183, 142, 89, 41, 20, 10, 7, 0, 0, 0, 0],
        [186, 162, 102, 56, 13, 4, 2, 2, 0, 0, 0, 0],
        [162, 129, 66, 33, 4, 1, 1, 0, 0, 0, 0, 0],
    ],
    'deit-e318': [
        [196, 196, 196, 194, 192, 184, 181, 181, 170, 170, 170, 170],
        [196, 195, 195, 190, 171, 147, 132, 122, 66, 43, 15, 0],
        [196, 195, 193, 180, 143, 109, 92, 77, 40, 21, 4, 0],
        [196, 195, 190, 165, 119, 84, 65, 50, 26, 14, 3, 0],
        [196, 194, 184, 149, 97, 65, 47, 33, 12, 9, 2, 0],
        [196, 186, 153, 93, 40, 15, 12, 9, 0, 0, 0, 0],
        [193, 173, 109, 52, 16, 4, 4, 4, 0, 0, 0, 0],
        [183, 145, 80, 33, 5, 1, 1, 2, 0, 0, 0, 0],
    ],
    'deit-e252': [
        [196, 196, 196, 195, 193, 189, 177, 177, 177, 177, 177, 177],
        [196, 196, 195, 189, 176, 161, 123, 122, 76, 48, 17, 0],
        [196, 196, 193, 179, 154, 123, 88, 79, 39, 22, 5, 0],
        [196, 195, 188, 167, 131, 96, 63, 52, 13, 11, 2, 0],
        [196, 194, 181, 147, 111, 75, 48, 36, 5, 7, 2, 0],
        [196, 187, 129, 88, 54, 20, 10, 10, 0, 1, 0, 0],
        [194, 163, 83, 44, 22, 6, 1, 3, 0, 0, 0, 0],
        [188, 122, 58, 28, 12, 2, 0, 2, 0, 0, 0, 0],
    ],
}
CLUSTERINGS = ('kmeans', 'kmedoids')
RANKINGS = ('significance', 'importance', 'random')


class PooledTokens(Reducer):
    """Rank the tokens, and keep the first or cluster around the first.

    Args:
        keep (float): Tokens to keep, as a share of the image's patches.
        ranking (str): By the attention that tokens receive
            (``'significance'``), by a draw with probabilities in proportion
            to it (``'importance'``), or at ``'random'``. In eval mode what
            is drawn depends on the number of tokens alone.
        clustering (str, optional): ``'kmeans'`` or ``'kmedoids'``; None to
            keep the first tokens.
        weighted (bool): Whether clusters weigh tokens by significance.
        iters (int): Iterations of the clustering.
    """

    def __init__(
        self,
        keep: float,
        ranking: str = 'significance',
        clustering: str | None = None,
        weighted: bool = False,
        iters: int = 5,
    ):
        super().__init__()
        self.keep, self.iters = keep, iters
        self.ranking, self.clustering = ranking, clustering
        self.weighted = weighted
        if ranking != 'random' or weighted:
            self.asks = 'column_sum'

    def forward(
        self, x: Tensor, trail: Trail, answer: Tensor | None
    ) -> Tensor:
        num_kept = round(self.keep * trail.num_patches)
        if num_kept >= x.shape[1]:
            return x
        order = ranking(self._score(x, answer))
        first = order[:, :num_kept]
        if self.clustering is None or not num_kept:
            trail.keep(order, num_kept, x)
            return take(x, first)
        weight = answer if self.weighted else None
        if self.clustering == 'kmeans':
            labels, centers = kmeans(x, first, weight, self.iters)
        else:
            labels, medoids = kmedoids(x, first, weight, self.iters)
            centers = take(x, medoids)
        trail.merge(labels, num_kept)
        return centers

    def _score(self, x: Tensor, significance: Tensor | None) -> Tensor:
        """What tokens are ranked by, [B, N]."""
        if self.ranking == 'significance':
            return significance
        if self.training:
            noise = torch.rand(x.shape[:2], device=x.device)
        else:
            # By NumPy, whose generators can be traced for export.
            noise = np.random.RandomState(0).random_sample(x.shape[1])
            noise = torch.from_numpy(noise).to(x.device, torch.float32)
            noise = noise.expand(x.shape[:2])
        if self.ranking == 'random':
            return noise
        # The largest log probabilities plus Gumbel noise are a draw without
        # replacement.
        tiny = torch.finfo(noise.dtype).tiny
        gumbel = -(-noise.clamp_min(tiny).log()).clamp_min(tiny).log()
        return significance.clamp_min(tiny).log() + gumbel


@MODELS.register_module()
class TokenPoolingDeiT(ThinViT):
    """DeiT whose tokens are pooled between attention and FFN.

    Args:
        arch (str | dict): See :class:`ThinViT`.
        keep (int | Sequence[int]): At most how many tokens each block keeps,
            the class token not among them, for an image of ``img_size``; in
            proportion for others. A single number is a sparsity level, 0 to
            7, of DeiT-S, e318 and e252 in the paper's tables.
        method (str): ``'kmeans'`` or ``'kmedoids'`` are Token Pooling.
            ``'significance'`` (PoWER-BERT), ``'importance'`` and
            ``'random'`` keep as many tokens, ranked by the attention they
            receive, drawn in proportion to it, or drawn. ``'conv'``
            down-samples the map by a 2 x 2 convolution after each block of
            ``reduce_at``; ``keep`` has no effect then.
        weighted (bool): Whether clusters weigh tokens by their significance.
        init (str): Clusters start from the tokens that are first by
            ``'significance'`` or at ``'random'``.
        iters (int): Iterations of the clustering.
        carry (bool): Whether attention counts a token as often as it has
            patches, by adding the logarithm to its logits (appendix E).
        reduce_at (Sequence[int]): Blocks that a convolution follows.
        kwargs: More arguments of :class:`ThinViT`; ``qk_norm`` for
            normalised queries and keys (appendix F).
    """

    METHODS = (*CLUSTERINGS, *RANKINGS, 'conv')

    @check_types
    def __init__(
        self,
        arch: str | dict = 'deit-small',
        keep: int | Sequence[int] = 3,
        method: str = 'kmedoids',
        weighted: bool = True,
        init: str = 'significance',
        iters: int = 5,
        carry: bool = False,
        reduce_at: Sequence[int] = (),
        **kwargs,
    ):
        super().__init__(arch, **kwargs)
        if method not in self.METHODS:
            raise ValueError(
                f'method must be one of {self.METHODS}, not {method!r}'
            )
        if init not in ('significance', 'random'):
            raise ValueError(
                f"init must be 'significance' or 'random', not {init!r}"
            )
        check_positive(iters=iters)
        self.carry = carry
        if method == 'conv':
            if not reduce_at:
                raise ValueError(
                    "say by reduce_at after which blocks 'conv' down-samples"
                )
            check_reduce_at(reduce_at)
            reducers = {
                block: TokenPool(self.embed_dims, 'conv', 2, 2, 2)
                for block in reduce_at
            }
        else:
            is_clustering = method in CLUSTERINGS
            reducers = {
                block: PooledTokens(
                    share,
                    ranking=init if is_clustering else method,
                    clustering=method if is_clustering else None,
                    weighted=weighted and is_clustering,
                    iters=iters,
                )
                for block, share in self._shares(arch, keep).items()
            }
        self.place_reducers(reducers)

    @property
    def needs_trail(self) -> bool:
        return self.carry or super().needs_trail

    def attention_inputs(self, x: Tensor, trail: Trail) -> dict:
        if not self.carry or trail.owner is None:
            return {}
        extra = self.num_extra_tokens
        sizes = trail.sizes(x[:, extra:])
        return {'bias': F.pad(sizes.log(), (extra, 0))}

    def _shares(
        self, arch: str | dict, keep: int | Sequence[int]
    ) -> dict[int, float]:
        """Share of the patches that the blocks which thin them keep."""
        if isinstance(keep, int):
            levels = KEEP.get(arch, ()) if isinstance(arch, str) else ()
            if not 0 <= keep < len(levels):
                raise ValueError(
                    f'there is no sparsity level {keep} of {arch}: '
                    f'{list(KEEP)} have levels 0 to 7, others need a list '
                    'of how many tokens each block keeps'
                )
            keep = levels[keep]
        if len(keep) != self.num_layers:
            raise ValueError(
                f'keep has {len(keep)} entries, but there are '
                f'{self.num_layers} blocks'
            )
        num_patches = left = math.prod(self.grid)
        shares = {}
        for block, kept in enumerate(keep):
            if not 0 <= kept <= num_patches:
                raise ValueError(
                    f'keep has {kept}, but an image of this size has '
                    f'{num_patches} patches'
                )
            if kept < left:
                shares[block] = kept / num_patches
                left = kept
        return shares
