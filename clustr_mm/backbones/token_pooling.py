"""Token Pooling: tokens are clustered, and the cluster centers go on.

With the selections of tokens that the paper compares it to, and its
down-sampling by convolution (appendix D).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from clustr_mm.arguments import check_positive, check_shares, check_types
from clustr_mm.layers.pooling import TokenPool
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.compiling import ranking
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from clustr_mm.tokens.trail import Trail, take
from .vit import ThinViT, check_per_block, check_reduce_at

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
# A power of two, for want of whole numbers that wrap around everywhere.
_SCATTER = 2**31
CLUSTERINGS = ('kmeans', 'kmedoids')
RANKINGS = ('significance', 'importance', 'random')


def _scattered(num: int, device: torch.device) -> Tensor:
    """So many different numbers in [0, 1) that look drawn, always the same.

    By whole numbers alone, which are equal on all devices and in an exported
    graph, where there are no generators. x (2x + 1) permutes the remainders
    by a power of two, and its high bits depend on all of x.
    """
    x = torch.arange(1, num + 1, device=device) * 2654435769 % _SCATTER
    x = x * (2 * x + 1) % _SCATTER
    x = x // 2**15 + x % 2**15 * 2**16
    x = x * (2 * x + 1) % _SCATTER
    return x.float() / _SCATTER


@MODELS.register_module()
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
        trunk: Arguments of :class:`Reducer`.
    """

    @check_types
    def __init__(
        self,
        keep: float,
        ranking: str = 'significance',
        clustering: str | None = None,
        weighted: bool = False,
        iters: int = 5,
        **trunk,
    ):
        super().__init__(**trunk)
        check_shares(keep=keep)
        check_positive(iters=iters)
        if ranking not in RANKINGS:
            raise ValueError(
                f'ranking must be one of {RANKINGS}, not {ranking!r}'
            )
        if clustering not in (None, *CLUSTERINGS):
            raise ValueError(
                f'clustering must be None or one of {CLUSTERINGS}, not '
                f'{clustering!r}'
            )
        self.keep, self.iters = keep, iters
        self.ranking, self.clustering = ranking, clustering
        self.weighted = weighted
        if ranking != 'random' or weighted:
            self.statistic = 'column_sum'

    def forward(
        self, x: Tensor, trail: Trail, column_sum: Tensor | None
    ) -> Tensor:
        num_kept = round(self.keep * trail.num_patches)
        if num_kept >= x.shape[1]:
            return x
        order = ranking(self._score(x, column_sum))
        first = order[:, :num_kept]
        if self.clustering is None or not num_kept:
            trail.select(order, num_kept, x)
            return take(x, first)
        weight = column_sum if self.weighted else None
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
            noise = _scattered(x.shape[1], x.device).expand(x.shape[:2])
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
        super().__init__(arch, carry=carry, **kwargs)
        if method not in self.METHODS:
            raise ValueError(
                f'method must be one of {self.METHODS}, not {method!r}'
            )
        if init not in ('significance', 'random'):
            raise ValueError(
                f"init must be 'significance' or 'random', not {init!r}"
            )
        check_positive(iters=iters)
        if method == 'conv':
            own = self._convolutions(reduce_at)
        else:
            is_clustering = method in CLUSTERINGS
            own = [
                PooledTokens(
                    keep=share,
                    ranking=init if is_clustering else method,
                    clustering=method if is_clustering else None,
                    weighted=weighted and is_clustering,
                    iters=iters,
                    block=block,
                )
                for block, share in self._shares(arch, keep).items()
            ]
        self.place_reducers([*own, *self.reducers])

    def _convolutions(self, reduce_at: Sequence[int]) -> list[TokenPool]:
        if not reduce_at:
            raise ValueError(
                "say by reduce_at after which blocks 'conv' down-samples"
            )
        check_reduce_at(reduce_at, self.num_layers)
        return [
            TokenPool(
                'conv',
                dims=2,
                kernel_size=2,
                with_pos_embed=False,
                block=block,
                embed_dims=self.embed_dims,
            )
            for block in reduce_at
        ]

    def _shares(
        self, arch: str | dict, keep: int | Sequence[int]
    ) -> dict[int, float]:
        """Share of the patches that the blocks which thin them keep."""
        if isinstance(keep, int):
            levels = KEEP.get(arch, ()) if isinstance(arch, str) else ()
            if not 0 <= keep < len(levels):
                raise ValueError(
                    f'keep: there is no sparsity level {keep} of {arch}. '
                    f'{", ".join(KEEP)} have levels from 0 to 7; give others '
                    'a list of how many tokens each block keeps'
                )
            keep = levels[keep]
        check_per_block('keep', keep, self.num_layers)
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
