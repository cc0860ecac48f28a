"""What a backbone did with the tokens of an image, stage by stage."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clustr_mm.backbones.backbone import Backbone
from clustr_mm.backbones.clustr import ClusTR, Grid, Scales
from clustr_mm.backbones.vit import ThinViT
from clustr_mm.errors import UserError
from clustr_mm.layers.reducer import Reducer
from clustr_mm.tokens.density_peaks import Clusters
from clustr_mm.tokens.trail import Trail


class Clustered(NamedTuple):
    """Tokens in clusters.

    A cluster goes by the number of its first token, so that one that grows
    keeps its name; -1 are tokens that left.
    """

    title: str
    stride: int  # pixels a side of a token
    labels: Tensor  # [h, w]


class Selected(NamedTuple):
    """Tokens of which some left, or share one that others were fused to.

    The maps tell since when, by the number of the stage, from 1; 0 is not.
    """

    title: str
    stride: int
    left: Tensor  # [h, w]
    fused: Tensor  # [h, w]


class Pooled(NamedTuple):
    """Features of pooled tokens."""

    title: str
    stride: int
    fmap: Tensor  # [C, h, w]


Stage = Clustered | Selected | Pooled


def find_backbone(model: nn.Module) -> Backbone:
    """The backbone of ours, one that thins tokens, in a model."""
    ours = [m for m in model.modules() if isinstance(m, Backbone)]
    thinning = [backbone for backbone in ours if backbone.thins]
    if thinning:
        return thinning[0]
    if ours:
        raise UserError(
            f'the {type(ours[0]).__name__} of this model is set to thin no '
            'tokens, so there is nothing to draw'
        )
    name = type(getattr(model, 'backbone', model)).__name__
    raise UserError(
        f'this model has no backbone of clustr_mm: {name} keeps all its '
        'tokens. tools/swap_backbone.py puts one of ours into a config.'
    )


@torch.no_grad()
def follow(backbone: Backbone, img: Tensor) -> list[Stage]:
    """Run a backbone in eval mode on ``img`` [1, 3, H, W].

    Returns:
        list[Stage]: Where it thinned the tokens; none where it kept all.
    """
    if backbone.is_pyramid:
        return _follow_pyramid(backbone, img)
    return _follow_vit(backbone, img)


def _follow_pyramid(backbone: ClusTR, img: Tensor) -> list[Stage]:
    """The clusters in the last block of each stage, by scale."""
    stages = []
    for i, (*_, (grid, scales)) in enumerate(clusters_by_block(backbone, img)):
        for j, clusters in enumerate(scales):
            if clusters is None:
                continue
            number = clusters.num_existing(0)
            scale = f', scale {j + 1}' if len(scales) > 1 else ''
            num_tokens = clusters.labels.shape[1]
            title = f'stage {i + 1}{scale}: {number} of {num_tokens} tokens'
            labels = _by_first_token(clusters.labels[0], clusters.num_clusters)
            stages.append(Clustered(title, 4 * 2**i, labels.view(grid)))
    return stages


def clusters_by_block(
    backbone: ClusTR, img: Tensor
) -> list[list[tuple[tuple[int, int], Sequence[Clusters | None]]]]:
    """The grid of each block of each stage, and the clusters at its scales."""
    found = [[] for _ in backbone.stages]

    def note(stage: int, grid: Grid, scales: Scales | None) -> None:
        found[stage].append((tuple(grid), scales.clusters if scales else []))

    backbone.run(img, after_block=note)
    return found


def _by_first_token(labels: Tensor, number: int) -> Tensor:
    """Name clusters by their first token; labels from ``number`` on by -1."""
    token = torch.arange(len(labels), device=labels.device)
    first = torch.full((int(labels.max()) + 1,), len(labels)).to(token)
    first = first.scatter_reduce(0, labels, token, 'amin')[labels]
    return torch.where(labels < number, first, -1)


def _follow_vit(backbone: ThinViT, img: Tensor) -> list[Stage]:
    """What each reducer did."""
    follower = _Follower(backbone.patch_embed.patch_size)
    hooks = [
        reducer.register_forward_hook(follower.after_reducer)
        for reducer in backbone.reducers
    ]
    extra = backbone.num_extra_tokens
    try:
        backbone.run(
            img,
            track=True,
            after_block=lambda i, x, trail: follower.after_block(
                i, x[:, extra:], trail
            ),
        )
    finally:
        for hook in hooks:
            hook.remove()
    return follower.stages


class _Follower:
    """Notes what became of the patches of an image, as it happens."""

    def __init__(self, stride: int):
        self.stride = stride
        self.stages: list[Stage] = []
        self.num_reports = 0
        # Since when patches are gone or fused, by the number of the stage.
        self.left: Tensor | int = 0
        self.fused: Tensor | int = 0

    def after_reducer(self, reducer: Reducer, args: tuple, x: Tensor) -> None:
        trail = args[1]
        if len(trail.reports) == self.num_reports or trail.pooled:
            return
        self.num_reports = len(trail.reports)
        num_tokens, since = x.shape[1], len(trail.steps)
        owner = trail.owner[0].view(trail.grid)
        never = torch.zeros_like(owner)
        gone = owner >= num_tokens
        left = never + self.left
        self.left = torch.where(gone & (left == 0), since, left)
        self.fused = never + self.fused
        if trail.reports[-1] == 'fuse':
            is_last = owner == num_tokens - 1
            self.fused = torch.where(is_last, since, self.fused)
        title = _title(reducer.block, num_tokens, trail)
        own = owner[self.fused == 0]
        if own.unique().numel() < own.numel():
            labels = _by_first_token(owner.flatten(), num_tokens)
            stage = Clustered(title, self.stride, labels.view(trail.grid))
        else:
            stage = Selected(title, self.stride, self.left, self.fused)
        self.stages.append(stage)

    def after_block(self, i: int, x: Tensor, trail: Trail) -> None:
        """Pooled tokens are shown as they leave their stage, which ends
        where the next one pools."""
        if not trail.pooled:
            return
        if len(trail.reports) == self.num_reports:
            self.stages.pop()
        self.num_reports = len(trail.reports)
        title = _title(i, x.shape[1], trail)
        fmap = trail.to_map(trail.bank(x))[0]
        self.stages.append(Pooled(title, self.stride, fmap))


def _title(block: int, num_tokens: int, trail: Trail) -> str:
    return f'block {block + 1}: {num_tokens} of {trail.num_patches} tokens'
