"""Straightforward versions of our algorithms, to measure ours against.

They are what one writes down from the papers' equations: full matrices,
masks, loops over clusters, attention probabilities in memory. They compute
the same as ours, of which the benchmark makes sure before it times them.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from clustr_mm.backbones.dynamic_vit import PredictedTokens
from clustr_mm.backbones.evit import AttentiveTokens
from clustr_mm.backbones.token_pooling import PooledTokens
from clustr_mm.backbones.vit import ThinViT
from clustr_mm.layers.attention import Attention
from clustr_mm.layers.pooling import TokenPool


def textbook_density_peaks(
    x: Tensor, num_clusters: Sequence[int], k: int = 5
) -> list[Tensor]:
    """Density peaks of ``x`` [B, N, C] (ClusTR, eqs. 1 to 3).

    Returns:
        list[Tensor]: Labels [B, N] for each number of clusters.
    """
    num_tokens = x.shape[1]
    distance = torch.cdist(x, x) / math.sqrt(x.shape[-1])
    nearest = distance.topk(k, largest=False).values
    log_density = -nearest.square().mean(-1)
    denser = log_density[:, None, :] > log_density[:, :, None]
    delta, parent = distance.masked_fill(~denser, math.inf).min(-1)
    is_densest = ~denser.any(-1)
    delta = torch.where(is_densest, distance.amax(-1), delta)
    itself = torch.arange(num_tokens, device=x.device).expand_as(parent)
    parent = torch.where(is_densest, itself, parent)
    score = (log_density + delta.log()).masked_fill(is_densest, math.inf)
    return [_join(score, parent, itself, m) for m in num_clusters]


def _join(
    score: Tensor, parent: Tensor, itself: Tensor, num_clusters: int
) -> Tensor:
    """Let tokens join their parents' clusters, generation by generation."""
    centers = score.topk(num_clusters).indices.sort().values
    number = torch.full_like(parent, -1).scatter(
        1, centers, itself[:, :num_clusters]
    )
    joined = torch.where(number >= 0, itself, parent)
    while True:
        ancestor = joined.gather(1, joined)
        if torch.equal(ancestor, joined):
            return number.gather(1, joined)
        joined = ancestor


def looped_kmedoids(
    x: Tensor, init: Tensor, weight: Tensor | None = None, iters: int = 5
) -> tuple[Tensor, Tensor]:
    """K-Medoids of ``x`` [B, N, C], a cluster at a time (Token Pooling,
    eqs. 16 to 18, weighted as in 13).

    Returns:
        tuple[Tensor, Tensor]: Labels [B, N] and medoids [B, K].
    """
    if weight is None:
        weight = x.new_ones(x.shape[:2])
    distance = torch.cdist(x, x).square()
    # Where rounding made something of them, pairs would not tie.
    distance.diagonal(dim1=1, dim2=2).zero_()
    medoids = init.clone()
    for _ in range(iters):
        to_medoids = distance.gather(
            2, medoids[:, None].expand(-1, x.shape[1], -1)
        )
        labels = to_medoids.argmin(-1)
        for image in range(len(x)):
            for cluster in range(init.shape[1]):
                members = (labels[image] == cluster).nonzero()[:, 0]
                if len(members):
                    pairs = distance[image][members][:, members]
                    cost = (pairs * weight[image, members]).sum(-1)
                    medoids[image, cluster] = members[cost.argmin()]
    return labels, medoids


def straightforward(model: ThinViT) -> Callable[[Tensor], Tensor]:
    """The method of a plain ViT in eval mode, with the weights of this model.

    For images of the model's size, EViT, DynamicViT, HVT, dense ViTs and
    Token Pooling by K-Medoids; it returns the vector that a head takes.
    """
    acts_at = {reducer.block: reducer for reducer in model.reducers}
    embed, num_patches = model.patch_embed, math.prod(model.grid)

    def forward(img: Tensor) -> Tensor:
        x = embed.proj(img).flatten(2).transpose(1, 2)
        if model.cls_token is not None:
            x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1)
        x = x + model.pos_embed
        for i, block in enumerate(model.blocks):
            reducer = acts_at.get(i)
            rule, place = RULES[type(reducer)], getattr(reducer, 'place', None)
            if place == 'before':
                x = rule(reducer, x, None, num_patches)
            out, attention = _attend(block.attn, block.norm1(x))
            x = x + out
            if place == 'between':
                x = rule(reducer, x, attention, num_patches)
            hidden = F.gelu(_linear(block.mlp.fc1, block.norm2(x)))
            x = x + _linear(block.mlp.fc2, hidden)
            if place == 'after':
                x = rule(reducer, x, None, num_patches)
        x = model.norm(x)
        return x.mean(1) if model.cls_token is None else x[:, 0]

    return forward


def _linear(layer: torch.nn.Linear, x: Tensor) -> Tensor:
    return F.linear(x, layer.weight, layer.bias)


def _attend(layer: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Self-attention, and its probabilities [B, heads, N, N]."""
    batch, num_tokens, channels = x.shape
    qkv = _linear(layer.qkv, x)
    qkv = qkv.reshape(batch, num_tokens, 3, layer.num_heads, -1)
    query, key, value = qkv.permute(2, 0, 3, 1, 4)
    logits = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    attention = logits.softmax(-1)
    out = (attention @ value).transpose(1, 2)
    return _linear(layer.proj, out.reshape(x.shape)), attention


def _gather(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def _keep_attentive(
    reducer: AttentiveTokens, x: Tensor, attention: Tensor, num_patches: int
) -> Tensor:
    """EViT: keep what the class token looks at, and fuse the rest."""
    patches, score = x[:, 1:], attention[:, :, 0, 1:].mean(1)
    order = score.argsort(descending=True)
    num_kept = math.ceil(reducer.keep * patches.shape[1])
    kept, rest = order[:, :num_kept], order[:, num_kept:]
    tokens = [x[:, :1], _gather(patches, kept)]
    if reducer.fuse:
        weighted = _gather(patches, rest) * score.gather(1, rest)[..., None]
        tokens.append(weighted.sum(1, keepdim=True))
    return torch.cat(tokens, 1)


def _keep_predicted(
    reducer: PredictedTokens, x: Tensor, attention: None, num_patches: int
) -> Tensor:
    """DynamicViT: keep the tokens that the predictor rates highest."""

    def run(layers: torch.nn.Sequential, x: Tensor) -> Tensor:
        for layer in layers:
            is_linear = isinstance(layer, torch.nn.Linear)
            x = _linear(layer, x) if is_linear else layer(x)
        return x

    patches = x[:, 1:]
    local, total = run(reducer.predictor.features, patches).chunk(2, -1)
    total = total.mean(1, keepdim=True).expand_as(local)
    score = run(reducer.predictor.score, torch.cat([local, total], -1))
    order = score[..., 0].argsort(descending=True)
    kept = order[:, : int(reducer.keep * num_patches)]
    return torch.cat([x[:, :1], _gather(patches, kept)], 1)


def _pool(
    reducer: TokenPool, x: Tensor, attention: None, num_patches: int
) -> Tensor:
    """HVT: pool the sequence and add positions."""
    return reducer.pool(x.transpose(1, 2)).transpose(1, 2) + reducer.pos_embed


def _cluster(
    reducer: PooledTokens, x: Tensor, attention: Tensor, num_patches: int
) -> Tensor:
    """Token Pooling: medoids, starting from the most significant tokens."""
    num_kept = round(reducer.keep * num_patches)
    if not num_kept:
        return x[:, :1]
    patches = x[:, 1:]
    significance = attention.sum((1, 2))[:, 1:]
    first = significance.argsort(descending=True)[:, :num_kept]
    weight = significance if reducer.weighted else None
    _, medoids = looped_kmedoids(patches, first, weight, reducer.iters)
    return torch.cat([x[:, :1], _gather(patches, medoids)], 1)


# By the kind of a reducer.
RULES = {
    AttentiveTokens: _keep_attentive,
    PredictedTokens: _keep_predicted,
    TokenPool: _pool,
    PooledTokens: _cluster,
    type(None): None,
}
