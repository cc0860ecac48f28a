"""ClusTR: Exploring Efficient Self-Attention via Clustering.

A pyramid of four stages. Every token asks, but what it asks are clusters of
tokens, found by their content and merged into keys and values. Several
numbers of clusters side by side make the attention multi-scale.
"""

import itertools
import math
from collections.abc import Sequence
from functools import partial

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
from torch.utils.checkpoint import checkpoint

from clustr_mm.arguments import check_positive, check_rates, check_types
from clustr_mm.layers.linear import Linear
from clustr_mm.registry import MODELS
from clustr_mm.tokens.density_peaks import (
    Clusters,
    check_options,
    density_peaks,
)
from clustr_mm.tokens.merging import cluster_softmax, cluster_sum

Grid = tuple[int, int]
Scales = Sequence[Clusters | None]  # None: every token by itself


def _to_map(x: Tensor, grid: Grid) -> Tensor:
    """[B, N, C] -> [B, C, H, W]."""
    return x.mT.unflatten(2, grid)


def _to_tokens(fmap: Tensor) -> Tensor:
    """[B, C, H, W] -> [B, N, C]."""
    return fmap.flatten(2).mT


def _pad_to_multiple(fmap: Tensor, size: int) -> Tensor:
    """Pad the right and the bottom with zeros where they fall short."""
    height, width = fmap.shape[-2:]
    return F.pad(fmap, (0, -width % size, 0, -height % size))


class ConvFFN(BaseModule):
    """Feed-forward network with a depth-wise convolution in its middle."""

    def __init__(self, dims: int, ratio: int):
        super().__init__()
        hidden = dims * ratio
        self.fc1 = Linear(dims, hidden)
        self.conv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = Linear(hidden, dims)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        fmap = self.conv(_to_map(self.fc1(x), grid))
        return self.fc2(F.gelu(_to_tokens(fmap)))


class MultiSourceAttention(BaseModule):
    """Multi-head attention to several sets of tokens.

    Each has its own projection to keys and values. What the heads gather
    from them is summed over the sets, then projected (eq. 8).
    """

    def __init__(self, dims: int, num_heads: int, num_sources: int = 1):
        super().__init__()
        self.num_heads = num_heads
        self.q = Linear(dims, dims)
        self.kv = ModuleList(
            Linear(dims, 2 * dims) for _ in range(num_sources)
        )
        self.proj = Linear(dims, dims)

    def attend(
        self,
        x: Tensor,
        sources: Sequence[Tensor],
        masks: Sequence[Tensor | None],
    ) -> Tensor:
        """Let ``x`` [B, N, C] attend to sources [B, M, C].

        A mask [B, M] is true where a source's token may be attended to.
        """
        query = self._split_heads(self.q(x))
        gathered = 0
        for kv, source, mask in zip(self.kv, sources, masks, strict=True):
            key, value = map(self._split_heads, kv(source).chunk(2, -1))
            if mask is not None:
                mask = mask[:, None, None]
            gathered = gathered + self.product(query, key, value, mask)
        return self.proj(gathered.transpose(1, 2).flatten(2))

    def _split_heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def product(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
    ) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask)


class ClusterAttention(MultiSourceAttention):
    """Attention to clusters of tokens (sections 3.2 and 3.3).

    Args:
        dims (int): Number of channels.
        num_heads (int): Number of heads.
        reduction (Sequence[int]): Tokens a cluster, on average, at each
            scale; 1 stands for dense attention.
        clustering: Options of `density_peaks`.
    """

    def __init__(
        self, dims: int, num_heads: int, reduction: Sequence[int], **clustering
    ):
        super().__init__(dims, num_heads, len(reduction))
        self.reduction = reduction
        self.clustering = clustering
        if max(reduction) > 1:
            # The logarithm of a token's weight in its cluster, w in eq. 3.
            self.score = Linear(dims, 1)

    def forward(
        self, x: Tensor, grid: Grid, scales: Scales | None = None
    ) -> tuple[Tensor, Scales]:
        if scales is None:
            scales = self.cluster(x, grid)
        sources = [x if c is None else self.merge(x, c) for c in scales]
        masks = [c and c.mask for c in scales]
        return self.attend(x, sources, masks), scales

    def cluster(self, x: Tensor, grid: Grid) -> Scales:
        num_tokens = x.shape[1]
        numbers = [math.ceil(num_tokens / r) for r in self.reduction]
        sparse = [m for m in numbers if m < num_tokens]
        clusters = iter(
            density_peaks(x, sparse, grid=grid, **self.clustering)
            if sparse
            else ()
        )
        return [next(clusters) if m < num_tokens else None for m in numbers]

    def merge(self, x: Tensor, clusters: Clusters) -> Tensor:
        labels, num_clusters, _ = clusters
        score = self.score(x)[..., 0].to(x.dtype)
        weight = cluster_softmax(score, labels, num_clusters)
        return cluster_sum(x * weight[..., None], labels, num_clusters)


class SpatialReductionAttention(MultiSourceAttention):
    """The baseline of table 6: merge by a strided convolution (PVT).

    Args:
        dims (int): Number of channels.
        num_heads (int): Number of heads.
        reduction (Sequence[int]): Tokens a key, of which there is one
            scale; its root is the kernel size and stride.
        num_keys (int, optional): Let a query attend only to this many keys,
            those with the largest products (k-NN attention).
    """

    def __init__(
        self,
        dims: int,
        num_heads: int,
        reduction: Sequence[int],
        num_keys: int | None = None,
    ):
        super().__init__(dims, num_heads)
        self.stride = math.isqrt(reduction[0])
        self.num_keys = num_keys
        if self.stride > 1:
            self.reduce = nn.Conv2d(dims, dims, self.stride, self.stride)
            self.norm = nn.LayerNorm(dims)

    def forward(self, x: Tensor, grid: Grid, *_) -> tuple[Tensor, None]:
        source = x
        if self.stride > 1:
            fmap = _pad_to_multiple(_to_map(x, grid), self.stride)
            source = self.norm(_to_tokens(self.reduce(fmap)))
        return self.attend(x, [source], [None]), None

    def product(self, query, key, value, mask):
        if self.num_keys is None or self.num_keys >= key.shape[-2]:
            return super().product(query, key, value, mask)
        logits = query @ key.mT / math.sqrt(query.shape[-1])
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
        self.conv = nn.Conv2d(
            in_channels, dims, 7, stride=2, padding=3, bias=False
        )
        self.conv_norm = build_norm_layer(stem_norm_cfg, dims)[1]
        self.proj = nn.Conv2d(dims, dims, 2, stride=2)
        self.norm = build_norm_layer(norm_cfg, dims)[1]

    def forward(self, fmap: Tensor) -> tuple[Tensor, Grid]:
        fmap = F.relu(self.conv_norm(self.conv(fmap)))
        fmap = self.proj(_pad_to_multiple(fmap, 2))
        return self.norm(_to_tokens(fmap)), fmap.shape[-2:]


class OverlapEmbed(BaseModule):
    """Halve a map's height and width between stages."""

    def __init__(self, in_channels: int, dims: int, norm_cfg: dict):
        super().__init__()
        self.proj = nn.Conv2d(in_channels, dims, 3, stride=2, padding=1)
        self.norm = build_norm_layer(norm_cfg, dims)[1]

    def forward(self, fmap: Tensor) -> tuple[Tensor, Grid]:
        fmap = self.proj(fmap)
        return self.norm(_to_tokens(fmap)), fmap.shape[-2:]


def _resolve_arch(arch: str | dict, zoo: dict) -> dict:
    if isinstance(arch, str):
        if arch not in zoo:
            raise ValueError(
                f'arch must be one of {", ".join(zoo)} or a '
                f'dict, but is {arch!r}'
            )
        return zoo[arch]
    keys = {'depths', 'dims', 'num_heads', 'ffn_ratios'}
    if set(arch) != keys or len({len(v) for v in arch.values()}) != 1:
        raise ValueError(
            f'arch must give {", ".join(sorted(keys))}, each '
            f'with one value a stage, but is {arch}'
        )
    return arch


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


def _check_stages(
    out_indices: Sequence[int], frozen_stages: int, num_stages: int
):
    stages = set(out_indices)
    if not stages <= set(range(num_stages)) or not (
        0 < len(stages) == len(out_indices)
    ):
        raise ValueError(
            f'out_indices must be one or more of 0..{num_stages - 1}, each '
            f'once, but are {tuple(out_indices)}'
        )
    if not -1 <= frozen_stages <= num_stages:
        raise ValueError(
            f'frozen_stages must be in -1..{num_stages}, but is '
            f'{frozen_stages}'
        )


@MODELS.register_module()
class ClusTR(BaseModule):
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
        arch = _resolve_arch(arch, self.arch_zoo)
        depths, dims, heads = arch['depths'], arch['dims'], arch['num_heads']
        reduction = _resolve_reduction(reduction, attention, len(depths))
        if attention == 'cluster':
            make_attention = partial(
                ClusterAttention,
                k=k,
                assign=assign,
                window=window,
                share=share,
            )
        else:
            make_attention = partial(
                SpatialReductionAttention,
                num_keys=num_keys if attention == 'sra_knn' else None,
            )

        check_options(k, assign, window, share)
        _check_stages(out_indices, frozen_stages, len(depths))

        self.reuse = reuse
        self.out_indices = out_indices
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
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
                        make_attention(dims[i], heads[i], reduction[i]),
                        arch['ffn_ratios'][i],
                        next(drop_path),
                        norm_cfg,
                    )
                    for _ in range(depth)
                )
            )
            self.norms.append(build_norm_layer(norm_cfg, dims[i])[1])
        self._freeze()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        outs = []
        for i, (embed, blocks, norm) in enumerate(
            zip(self.embeds, self.stages, self.norms)
        ):
            x, grid = embed(x)
            scales = None
            for block in blocks:
                x, found = self._run(block, x, grid, scales)
                scales = found if self.reuse else None
            x = _to_map(norm(x), grid)
            if i in self.out_indices:
                # mmcv's operators, RoIAlign above all, read the memory of a
                # map as if it were laid out in the order of its dimensions.
                outs.append(x.contiguous())
        return tuple(outs)

    def _run(self, block: ClusTRBlock, *args):
        if self.with_cp and self.training:
            return checkpoint(block, *args, use_reentrant=False)
        return block(*args)

    def init_weights(self):
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

    def train(self, mode: bool = True):
        """Switch the mode; frozen stages stay in evaluation mode."""
        super().train(mode)
        self._freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _freeze(self):
        frozen = [self.embeds[0]] if self.frozen_stages >= 0 else []
        for i in range(self.frozen_stages):
            frozen += [self.embeds[i], self.stages[i], self.norms[i]]
        for module in frozen:
            module.eval().requires_grad_(False)
