"""Sums, means and softmaxes of tokens by cluster.

``labels`` [B, N] holds the cluster of each token, a number below
``num_clusters``. Gradients flow through tokens and weights.
"""

import torch
from torch import Tensor


def cluster_sum(x: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    """Sum the tokens ``x`` [B, N, C] of each cluster: [B, M, C]."""
    batch, _, channels = x.shape
    first = torch.arange(batch, device=x.device)[:, None] * num_clusters
    rows = (labels + first).flatten()
    out = x.new_zeros(batch * num_clusters, channels)
    return out.index_add(0, rows, x.flatten(0, 1)).unflatten(
        0, (batch, num_clusters)
    )


def cluster_softmax(
    score: Tensor, labels: Tensor, num_clusters: int
) -> Tensor:
    """Softmax of ``score`` [B, N] within each cluster: weights [B, N]."""
    # A shift of a cluster's scores leaves its softmax unchanged, so the
    # largest one, subtracted against overflow, needs no gradient.
    lowest = torch.full_like(score[:, :1], -torch.inf)
    peak = lowest.repeat(1, num_clusters).scatter_reduce(
        1, labels, score.detach(), 'amax'
    )
    weight = (score - peak.gather(1, labels)).exp()
    total = cluster_sum(weight[..., None], labels, num_clusters)[..., 0]
    return weight / total.gather(1, labels)


def cluster_mean(
    x: Tensor, labels: Tensor, num_clusters: int, weight: Tensor | None = None
) -> Tensor:
    """Mean of each cluster's tokens, weighted by ``weight`` [B, N] >= 0.

    A cluster that has no token, or whose weights are all zero, is zero.
    """
    if weight is None:
        weight = x.new_ones(x.shape[:2])
    total = cluster_sum(weight[..., None], labels, num_clusters)
    x = cluster_sum(x * weight[..., None], labels, num_clusters)
    return x / total.clamp_min(torch.finfo(x.dtype).tiny)
