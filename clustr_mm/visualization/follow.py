"""What a backbone did with the tokens of an image, stage by stage."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clustr_mm.backbones.clustr import ClusterAttention, ClusTR
from clustr_mm.backbones.evit import AttentiveTokens
from clustr_mm.backbones.vit import ThinViT
from clustr_mm.errors import UserError
from clustr_mm.tokens.provenance import Trail


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


def find_backbone(model: nn.Module) -> nn.Module:
    """The backbone of ours, one that thins tokens, in a model."""
    ours = [m for m in model.modules() if isinstance(m, (ClusTR, ThinViT))]
    thinning = [m for m in ours if _thins(m)]
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


def _thins(backbone: nn.Module) -> bool:
    if isinstance(backbone, ThinViT):
        return len(backbone.reducers) > 0
    return any(isinstance(m, ClusterAttention) for m in backbone.modules())


@torch.no_grad()
def follow(backbone: nn.Module, img: Tensor) -> list[Stage]:
    """Run a backbone in eval mode on ``img`` [1, 3, H, W].

    Returns:
        list[Stage]: Where it thinned the tokens; none where it kept all.
    """
    if isinstance(backbone, ClusTR):
        return _follow_clustr(backbone, img)
    return list(_follow_vit(backbone, img))


def _follow_clustr(backbone: ClusTR, img: Tensor) -> list[Stage]:
    """The clusters in the last block of each stage, by scale."""
    stages = []
    with _recorded(backbone) as found:
        backbone(img)
    for i, (grid, scales) in enumerate(found):
        for j, clusters in enumerate(scales):
            if clusters is None:
                continue
            number = clusters.num_clusters
            exist = number if clusters.mask is None else clusters.mask.sum()
            scale = f', scale {j + 1}' if len(scales) > 1 else ''
            num_tokens = clusters.labels.shape[1]
            title = f'stage {i + 1}{scale}: {exist} of {num_tokens} tokens'
            labels = _by_first_token(clusters.labels[0], number).view(grid)
            stages.append(Clustered(title, 4 * 2**i, labels))
    return stages


def _by_first_token(labels: Tensor, number: int) -> Tensor:
    """Name clusters by their first token; labels from ``number`` on by -1."""
    token = torch.arange(len(labels), device=labels.device)
    first = torch.full((int(labels.max()) + 1,), len(labels)).to(token)
    first = first.scatter_reduce(0, labels, token, 'amin')[labels]
    return torch.where(labels < number, first, -1)


@contextmanager
def _recorded(backbone: ClusTR) -> Iterator[list]:
    """Collect the grid and the clusters of each stage."""
    found = []

    def record(module, args, output):
        found.append((args[1], output[1]))

    handles = [
        blocks[-1].attn.register_forward_hook(record)
        for blocks in backbone.stages
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _follow_vit(backbone: ThinViT, img: Tensor) -> Iterator[Stage]:
    """What each reducer did."""
    x, trail = backbone.embed(img, track=True)
    extra, stride = backbone.num_extra_tokens, backbone.patch_embed.patch_size
    fuses = any(
        isinstance(r, AttentiveTokens) and r.fuse for r in backbone.reducers
    )
    left = torch.zeros(trail.grid, dtype=torch.long, device=img.device)
    fused, pooled = left, None
    for i, block in enumerate(backbone.blocks):
        before = len(trail.steps), trail.pooled
        x = backbone.run_block(i, block, x, trail)
        acted = before != (len(trail.steps), trail.pooled)
        num_tokens = x.shape[1] - extra
        title = f'block {i + 1}: {num_tokens} of {trail.num_patches} tokens'
        if trail.pooled:
            # A stage ends where the next one pools.
            if acted and pooled is not None:
                yield pooled
            pooled = Pooled(title, stride, _features(x[:, extra:], trail))
        elif acted:
            owner = trail.owner[0].view(trail.grid)
            since = len(trail.steps)
            gone = owner >= num_tokens
            left = torch.where(gone & (left == 0), since, left)
            if fuses:
                fused = torch.where(owner == num_tokens - 1, since, fused)
            elif owner.unique().numel() < owner.numel():
                labels = _by_first_token(owner.flatten(), num_tokens)
                yield Clustered(title, stride, labels.view(trail.grid))
                continue
            yield Selected(title, stride, left, fused)
    if pooled is not None:
        yield pooled


def _features(x: Tensor, trail: Trail) -> Tensor:
    """Feature map [C, h, w] of tokens [1, N, C]."""
    return trail.to_map(trail.bank(x))[0]
