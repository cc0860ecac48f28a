"""ClusTR: Exploring Efficient Self-Attention via Clustering.

A pyramid of four stages. Every token asks, but what it asks are clusters of
tokens, found by their content and merged into keys and values. Several
numbers of clusters side by side make the attention multi-scale.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmengine.model import (
    BaseModule,
    ModuleList,
    constant_init,
    normal_init,
    trunc_normal_init,
)
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from clustr_mm.arguments import check_positive, check_rates, check_types
from clustr_mm.layers.convolution import Conv2d, GELUConv2d
from clustr_mm.layers.linear import Linear
from clustr_mm.layers.recompute import recompute
from clustr_mm.registry import MODELS
from clustr_mm.tokens.density_peaks import (
    Clusters,
    check_options,
    density_peaks,
)
from clustr_mm.tokens.maps import (
    channels_last,
    map_to_tokens,
    tokens_to_map,
)
from clustr_mm.tokens.merging import (
    Rows,
    cluster_softmax_means,
    cluster_sum,
    number_clusters,
)
from .backbone import Backbone

# Tokens a side of the first stage's map at 224 x 224.
_USUAL_SIDE = 56
# Attention among this many tokens, those of stage 4 at 896 x 896, is still a
# small part of a stage's time.
_DENSE_TOKENS = 784

Grid = tuple[int, int]


class Scales(NamedTuple):
    """What a block attends to. Sharding takes it apart and builds it anew."""

    # Of each scale; None where every token is by itself.
    clusters: Sequence[Clusters | None]
    # Which of a scale's clusters exist, or what the logits of each get added.
    biases: Sequence[Tensor | None]
    rows: Rows | None = None  # numbers those of all scales, if there are any


def _pad_to_multiple(fmap: Tensor, size: int) -> Tensor:
    """Pad the right and the bottom with zeros where they fall short."""
    height, width = fmap.shape[-2:]
    return F.pad(fmap, (0, -width % size, 0, -height % size))


def _joined(
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    biases: Sequence[Tensor | None],
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Several sets of keys and values [B, H, M, C] as one, and its bias."""
    bias = next((b for b in biases if b is not None), None)
    if bias is not None:
        # What changes no logit is true in a mask, and 0 where one adds.
        neutral = bias.dtype == torch.bool
        bias = torch.cat(
            [
                bias.new_full((k.shape[0], k.shape[2]), neutral)
                if b is None
                else b
                for k, b in zip(keys, biases)
            ],
            1,
        )
    return torch.cat(keys, 2), torch.cat(values, 2), bias


class ConvFFN(BaseModule):
    """Feed-forward network with a depth-wise convolution in its middle."""

    def __init__(self, dims: int, ratio: int):
        super().__init__()
        hidden = dims * ratio
        self.fc1 = Linear(dims, hidden)
        self.conv = GELUConv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = Linear(hidden, dims)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        fmap = self.conv(tokens_to_map(self.fc1(x), grid))
        return self.fc2(map_to_tokens(fmap))


class MultiSourceAttention(BaseModule):
    """Multi-head attention to several sets of tokens.

    Each has its own projection to keys and values. What the heads gather
    from them is summed over the sets, then projected (eq. 8); or the sets are
    joined, and share a softmax (eq. 7).
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        num_sources: int = 1,
        joint: bool = False,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.joint = joint
        self.q = Linear(dims, dims)
        self.kv = ModuleList(
            Linear(dims, 2 * dims) for _ in range(num_sources)
        )
        self.proj = Linear(dims, dims)

    def attend(
        self,
        x: Tensor,
        sources: Sequence[Tensor],
        biases: Sequence[Tensor | None],
    ) -> Tensor:
        """Let ``x`` [B, N, C] attend to sources [B, M, C].

        A bias [B, M] is added to the logits of a source's tokens; or it is
        true where they may be attended to.
        """
        query = self._split_heads(self.q(x))
        sets = [
            (*map(self._split_heads, kv(source).chunk(2, -1)), bias)
            for kv, source, bias in zip(self.kv, sources, biases, strict=True)
        ]
        if self.joint:
            sets = [_joined(*zip(*sets))]
        gathered = None
        for key, value, bias in sets:
            if bias is not None:
                bias = bias[:, None, None]
                if bias.is_floating_point():
                    bias = bias.to(query.dtype)
            found = self.product(query, key, value, bias)
            gathered = found if gathered is None else gathered + found
        return self.proj(gathered.transpose(1, 2).flatten(2))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def product(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, bias)


class Clustering(nn.Module):
    """`density_peaks` with its options.

    As a module, so that whoever watches which of them runs can tell its
    products from those of attention.
    """

    counts_as = 'clustering'

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(
        self, x: Tensor, numbers: Sequence[int], grid: Grid
    ) -> list[Clusters]:
        return density_peaks(x, numbers, grid=grid, **self.options)


class ClusterMeans(nn.Module):
    """`cluster_softmax_means`, as a module for the same reason."""

    counts_as = 'clustering'

    def forward(self, x: Tensor, score: Tensor, rows: Rows) -> list[Tensor]:
        return cluster_softmax_means(x, score, rows)


class ClusterAttention(MultiSourceAttention):
    """Attention to clusters of tokens (sections 3.2 and 3.3).

    Args:
        dims (int): Number of channels.
        num_heads (int): Number of heads.
        reduction (Sequence[int]): Tokens a cluster, on average, at each
            scale; 1 stands for dense attention.
        stage (int): Which stage this is, from 0 on.
        growth (float): Which power of the number of tokens the number of
            clusters grows with, from 224 x 224 on.
        joint (bool): Whether all scales share a softmax.
        merge_norm (bool): Whether merged tokens are normalised.
        carry (bool): Whether a cluster counts as often as it has tokens.
        clustering: Options of `density_peaks`.
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        reduction: Sequence[int],
        stage: int = 0,
        growth: float = 1.0,
        joint: bool = False,
        merge_norm: bool = False,
        carry: bool = False,
        **clustering,
    ):
        super().__init__(dims, num_heads, len(reduction), joint)
        self.reduction = reduction
        self.carry = carry
        self.growth = growth
        self.usual_tokens = math.ceil(_USUAL_SIDE / 2**stage) ** 2
        self.clustering = Clustering(**clustering)
        self.means = ClusterMeans()
        self.score, self.norm = None, nn.Identity()
        if max(reduction) > 1:
            # The logarithm of a token's weight in its cluster, w in eq. 3.
            self.score = Linear(dims, 1)
            if merge_norm:
                self.norm = nn.LayerNorm(dims)
        else:
            # No clusters, until attention to so many tokens takes its time.
            self.usual_tokens = max(self.usual_tokens, _DENSE_TOKENS)

    def forward(
        self, x: Tensor, grid: Grid, scales: Scales | None = None
    ) -> tuple[Tensor, Scales]:
        if scales is None:
            scales = self.cluster(x, grid)
        sources = self.merge(x, scales)
        return self.attend(x, sources, scales.biases), scales

    def cluster(self, x: Tensor, grid: Grid) -> Scales:
        num_tokens = x.shape[1]
        numbers = [self.num_clusters(r, num_tokens) for r in self.reduction]
        sparse = [m for m in numbers if m < num_tokens]
        if not sparse:
            nothing = [None for _ in numbers]
            return Scales(nothing, nothing)
        found = self.clustering(x, sparse, grid)
        rest = iter(found)
        clusters = [next(rest) if m < num_tokens else None for m in numbers]
        labels, numbers, masks = zip(*found)
        some_lack = any(mask is not None for mask in masks)
        biases = [c and self._bias(x, c) for c in clusters]
        rows = number_clusters(labels, numbers, some_lack)
        return Scales(clusters, biases, rows)

    def _bias(self, x: Tensor, clusters: Clusters) -> Tensor | None:
        if not self.carry:
            return clusters.mask
        precise = torch.promote_types(x.dtype, torch.float32)
        ones = x.new_ones(*x.shape[:2], 1, dtype=precise)
        sizes = cluster_sum(ones, clusters.labels, clusters.num_clusters)
        # -inf for those that do not exist.
        return sizes[..., 0].log()

    def num_clusters(self, reduction: int, num_tokens: int) -> int:
        """Of a scale; not below the number of tokens stands for all."""
        usual = self.usual_tokens
        if self.growth == 1 or num_tokens <= usual:
            return -(-num_tokens // reduction)
        return math.ceil(
            usual / reduction * (num_tokens / usual) ** self.growth
        )

    def merge(self, x: Tensor, scales: Scales) -> list[Tensor]:
        """The tokens to attend to at each scale."""
        if scales.rows is None:
            return [x for _ in scales.clusters]
        if self.score is None:
            score = x.new_zeros(x.shape[:2])
        else:
            score = self.score(x)[..., 0]
        merged = iter(self.means(x, score, scales.rows))
        return [
            x if c is None else self.norm(next(merged))
            for c in scales.clusters
        ]


class SpatialReductionAttention(MultiSourceAttention):
    """The baseline of table 6: merge by a strided convolution (PVT).

    Args:
        dims (int): Number of channels.
        num_heads (int): Number of heads.
        reduction (Sequence[int]): Tokens a key, of which there is one
            scale; its root is the kernel size and stride.
        stage (int): Which stage this is; it is of no account.
        num_keys (int, optional): Let a query attend only to this many keys,
            those with the largest products (k-NN attention).
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        reduction: Sequence[int],
        stage: int = 0,
        num_keys: int | None = None,
    ):
        super().__init__(dims, num_heads)
        self.stride = math.isqrt(reduction[0])
        self.num_keys = num_keys
        if self.stride > 1:
            self.reduce = Conv2d(dims, dims, self.stride, self.stride)
            self.norm = nn.LayerNorm(dims)

    def forward(self, x: Tensor, grid: Grid, *_) -> tuple[Tensor, None]:
        source = x
        if self.stride > 1:
            fmap = _pad_to_multiple(tokens_to_map(x, grid), self.stride)
            source = self.norm(map_to_tokens(self.reduce(fmap)))
        return self.attend(x, [source], [None]), None

    def product(
        self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None
    ) -> Tensor:
        if self.num_keys is None or self.num_keys >= key.shape[-2]:
            return super().product(query, key, value, bias)
        # Before the product, which in half precision might overflow.
        logits = query / math.sqrt(query.shape[-1]) @ key.mT
        least = logits.topk(self.num_keys, -1).values[..., -1:]
        return (
            logits.masked_fill(logits < least, -math.inf).softmax(-1) @ value
        )


class ClusTRBlock(BaseModule):
    """Attention and feed-forward network (eq. 9)."""

    def __init__(
        self,
        dims: int,
        attention: nn.Module,
        ffn_ratio: int,
        drop_path: float,
        norm_cfg: dict,
    ):
        super().__init__()
        self.norm1 = build_norm_layer(norm_cfg, dims)[1]
        self.attn = attention
        self.norm2 = build_norm_layer(norm_cfg, dims)[1]
        self.ffn = ConvFFN(dims, ffn_ratio)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Tensor, grid: Grid, scales: Scales | None = None
    ) -> tuple[Tensor, Scales | None]:
        attended, scales = self.attn(self.norm1(x), grid, scales)
        x = x + self.drop_path(attended)
        x = x + self.drop_path(self.ffn(self.norm2(x), grid))
        return x, scales


class Stem(BaseModule):
    """From an image to tokens of stride 4."""

    def __init__(
        self, in_channels: int, dims: int, stem_norm_cfg: dict, norm_cfg: dict
    ):
        super().__init__()
        self.conv = Conv2d(
            in_channels, dims, 7, stride=2, padding=3, bias=False
        )
        self.conv_norm = build_norm_layer(stem_norm_cfg, dims)[1]
        self.proj = Conv2d(dims, dims, 2, stride=2)
        self.norm = build_norm_layer(norm_cfg, dims)[1]

    def forward(self, fmap: Tensor) -> tuple[Tensor, Grid]:
        fmap = self.conv(channels_last(fmap))
        fmap = F.relu(self.conv_norm(fmap))
        fmap = self.proj(_pad_to_multiple(fmap, 2))
        return self.norm(map_to_tokens(fmap)), fmap.shape[-2:]


class OverlapEmbed(BaseModule):
    """Halve a map's height and width between stages."""

    def __init__(self, in_channels: int, dims: int, norm_cfg: dict):
        super().__init__()
        self.proj = Conv2d(in_channels, dims, 3, stride=2, padding=1)
        self.norm = build_norm_layer(norm_cfg, dims)[1]

    def forward(self, fmap: Tensor) -> tuple[Tensor, Grid]:
        fmap = self.proj(fmap)
        return self.norm(map_to_tokens(fmap)), fmap.shape[-2:]


def _check_arch(arch: dict) -> None:
    keys = {'depths', 'dims', 'num_heads', 'ffn_ratios'}
    if set(arch) != keys or len({len(v) for v in arch.values()}) != 1:
        raise ValueError(
            f'arch must give {", ".join(sorted(keys))}, each '
            f'with one value a stage, but is {arch}'
        )


def _attention_maker(
    kind: str, num_keys: int, **clustering
) -> Callable[..., MultiSourceAttention]:
    """What makes the attention of a block."""
    if kind == 'cluster':
        return partial(ClusterAttention, **clustering)
    num_keys = num_keys if kind == 'sra_knn' else None
    return partial(SpatialReductionAttention, num_keys=num_keys)


def _resolve_reduction(
    reduction: Sequence | None, attention: str, num_stages: int
) -> list[tuple[int, ...]]:
    """The scales of each stage as a tuple."""
    if attention not in ('cluster', 'sra', 'sra_knn'):
        raise ValueError(
            "attention must be 'cluster', 'sra' or 'sra_knn', "
            f'but is {attention!r}'
        )
    clusters = attention == 'cluster'
    if reduction is None:
        reduction = (
            ((64, 16), (16, 4), (4, 1), 1) if clusters else (64, 16, 4, 1)
        )
    scales = [(r,) if isinstance(r, int) else tuple(r) for r in reduction]
    if (
        len(scales) != num_stages
        or any(r < 1 for r in itertools.chain(*scales))
        or () in scales
    ):
        raise ValueError(
            'reduction must give each of the '
            f'{num_stages} stages one or more numbers from 1 '
            f'up, but is {reduction}'
        )
    if not clusters and any(
        len(s) > 1 or math.isqrt(s[0]) ** 2 != s[0] for s in scales
    ):
        raise ValueError(
            'spatial reduction takes one square number a stage, '
            f'but reduction is {reduction}'
        )
    return scales


@MODELS.register_module()
class ClusTR(Backbone):
    """ClusTR backbone: maps of stride 4, 8, 16 and 32.

    Images may have any height and width; a map's are rounded up.

    Args:
        arch (str | dict): 'tiny', 'small' or 'base', or a dict with
            ``depths``, ``dims``, ``num_heads`` and ``ffn_ratios`` for each
            stage.
        reduction (Sequence[int | Sequence[int]], optional): Tokens a
            cluster in each stage, one number or one for each scale.
            Defaults to ((64, 16), (16, 4), (4, 1), 1), and to (64, 16, 4, 1)
            without clusters.
        attention (str): 'cluster'; or the paper's baselines, 'sra' for
            spatial reduction by strided convolutions and 'sra_knn' for that
            with k-NN attention.
        k (int): Neighbours that tell a token's density.
        assign (str): 'parent', tokens join the cluster of the nearest denser
            token, or 'nearest', that of the nearest centre.
        window (int, optional): Look for neighbours within windows of at most
            this many tokens a side, which makes clustering linear in the
            image's area. None looks everywhere.
        reuse (bool): Cluster once a stage, in its first block.
        share (float): Below 1, each image takes only as many clusters as
            hold this share of the decision values.
        growth (float): How the number of clusters grows with that of tokens
            in images larger than 224 x 224: in proportion to this power of
            it. With 1, the paper's, ``reduction`` is the same at all sizes;
            with 0 the number is, and a stage that attends densely takes
            clusters, too, once it has more than 784 tokens.
        joint (bool): Whether a token attends to the clusters of all scales
            in one softmax (equation 7), or in one for each scale, which are
            summed (equation 8).
        merge_norm (bool): Whether merged tokens are normalised before they
            become keys and values, as those of spatial reduction are.
        carry (bool): Whether attention counts a cluster as often as it has
            tokens, by the logarithm of their number (ToMe's proportional
            attention). The paper's does not.
        num_keys (int): Keys that a query attends to in 'sra_knn'. The
            default is about half of those at 224 x 224, as in the paper of
            k-NN attention.
        in_channels (int): Channels of the image.
        drop_path_rate (float): Stochastic depth, growing linearly with depth.
        out_indices (Sequence[int]): Stages whose maps are returned.
        frozen_stages (int): Freeze the stem and this many stages; -1 freezes
            nothing.
        norm_eval (bool): Keep batch norms in evaluation mode.
        with_cp (bool): Recompute blocks in the backward pass to save memory.
        stem_norm_cfg (dict): Norm of the stem's first convolution.
        norm_cfg (dict): All other norms.
        init_cfg (dict, optional): As in all MMEngine modules.
    """

    arch_zoo = {
        'tiny': dict(
            depths=(1, 2, 6, 1),
            dims=(64, 128, 256, 512),
            num_heads=(1, 2, 4, 8),
            ffn_ratios=(8, 8, 4, 4),
        ),
        'small': dict(
            depths=(3, 5, 13, 2),
            dims=(64, 128, 256, 512),
            num_heads=(1, 2, 4, 8),
            ffn_ratios=(8, 8, 4, 4),
        ),
        'base': dict(
            depths=(3, 5, 18, 3),
            dims=(64, 128, 320, 512),
            num_heads=(1, 2, 5, 8),
            ffn_ratios=(8, 8, 4, 4),
        ),
    }

    is_pyramid = True
    # With which it is linear in the area of a large image, as of a detector.
    large_options = {'window': 56, 'reuse': True}
    # What the costs that the paper prints are made of, attention and
    # clustering left out. See `clustr_mm.analysis.cost.KINDS`.
    paper_kinds = ('layers',)

    @check_types
    def __init__(
        self,
        arch: str | dict = 'small',
        reduction: Sequence | None = None,
        attention: str = 'cluster',
        k: int = 5,
        assign: str = 'parent',
        window: int | None = None,
        reuse: bool = False,
        share: float = 1.0,
        growth: float = 1.0,
        joint: bool = False,
        merge_norm: bool = False,
        carry: bool = False,
        num_keys: int = 25,
        in_channels: int = 3,
        drop_path_rate: float = 0.0,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        stem_norm_cfg: dict = dict(type='BN'),
        norm_cfg: dict = dict(type='LN', eps=1e-6),
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        check_rates(drop_path_rate=drop_path_rate)
        check_positive(in_channels=in_channels, num_keys=num_keys)
        arch = self.choose_arch(arch)
        _check_arch(arch)
        depths, dims, heads = arch['depths'], arch['dims'], arch['num_heads']
        reduction = _resolve_reduction(reduction, attention, len(depths))
        make_attention = _attention_maker(
            attention,
            num_keys,
            k=k,
            assign=assign,
            window=window,
            share=share,
            growth=growth,
            joint=joint,
            merge_norm=merge_norm,
            carry=carry,
        )
        check_options(k, assign, window, share)
        if not 0 <= growth <= 1:
            raise ValueError(f'growth must be in [0, 1], but is {growth}')
        self.out_indices = self.choose_outputs(out_indices, len(depths))
        self.choose_frozen(frozen_stages, norm_eval, len(depths))

        self.reuse = reuse
        self.with_cp = with_cp

        total = max(sum(depths) - 1, 1)
        drop_path = (drop_path_rate * i / total for i in itertools.count())
        self.embeds = ModuleList()
        self.stages = ModuleList()
        self.norms = ModuleList()
        for i, depth in enumerate(depths):
            self.embeds.append(
                OverlapEmbed(dims[i - 1], dims[i], norm_cfg)
                if i
                else Stem(in_channels, dims[0], stem_norm_cfg, norm_cfg)
            )
            self.stages.append(
                ModuleList(
                    ClusTRBlock(
                        dims[i],
                        make_attention(dims[i], heads[i], reduction[i], i),
                        arch['ffn_ratios'][i],
                        next(drop_path),
                        norm_cfg,
                    )
                    for _ in range(depth)
                )
            )
            self.norms.append(build_norm_layer(norm_cfg, dims[i])[1])
        self.freeze()

    @property
    def thins(self) -> bool:
        return any(isinstance(m, ClusterAttention) for m in self.modules())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.run(x)

    def run(
        self,
        x: Tensor,
        after_block: Callable[[int, Grid, Scales | None], None] | None = None,
    ) -> tuple[Tensor, ...]:
        """Take an image [B, 3, H, W] through the network.

        Args:
            x (Tensor): Images [B, 3, H, W].
            after_block (Callable, optional): Called after each block with
                the number of its stage, its height and width in tokens, and
                what it attended to, if these are clusters.
        """
        outs = []
        for i, (embed, blocks, norm) in enumerate(
            zip(self.embeds, self.stages, self.norms)
        ):
            x, grid = embed(x)
            scales = None
            for block in blocks:
                x, found = self._run(block, x, grid, scales)
                if after_block is not None:
                    after_block(i, grid, found)
                scales = found if self.reuse else None
            x = tokens_to_map(norm(x), grid)
            if i in self.out_indices:
                # mmcv's operators, RoIAlign above all, read the memory of a
                # map as if it were laid out in the order of its dimensions.
                outs.append(x.contiguous())
        return tuple(outs)

    def _run(self, block: ClusTRBlock, *args):
        if self.with_cp:
            return recompute(block, *args)
        return block(*args)

    def init_weights(self) -> None:
        """Initialise as PVT does, unless ``init_cfg`` says otherwise."""
        if self.init_cfg is not None:
            super().init_weights()
            return
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_init(module, std=0.02)
            elif isinstance(module, (nn.LayerNorm, _BatchNorm)):
                constant_init(module, 1)
            elif isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * math.prod(module.kernel_size)
                normal_init(module, std=math.sqrt(2 * module.groups / fan_out))

    def frozen_parts(self) -> Iterable[nn.Module]:
        yield self.embeds[0]
        for i in range(self.frozen_stages):
            yield from (self.embeds[i], self.stages[i], self.norms[i])
