"""Weighted K-Means and K-Medoids of tokens (Token Pooling, appendix A).

Both look for K centers that make ``sum_i w_i |x_i - c_a(i)|^2`` small, eq. 13,
where ``a(i)`` is the cluster of token i: they assign each token to the nearest
center, move each center to the best place among its tokens, and repeat. The
best place is the weighted mean in K-Means, and one of the tokens in K-Medoids.

Clusters start from given tokens, and all is deterministic: of equally good
choices, rounding errors apart, the one with the lower index is taken. A
cluster that is left without tokens, or whose tokens weigh nothing, keeps its
center. Distances are computed in float32 at least, whatever the tokens' type
and the autocast state. No gradient flows through the assignment.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .merging import cluster_mean, cluster_sum
from .provenance import take

# Distances computed at a time for an image: 16 MB in float32. Neither this
# nor the next depends on the batch, so that an image's result does not.
_TILE = 2**22
# Tokens an image up to which K-Medoids keeps a matrix of all distances.
_TABLE = 1024
# Numbers that differ by less than this many rounding errors count as equal.
_MARGIN = 4

# Medoids [B, K] -> the cluster of each token and the token's cost as its
# cluster's medoid, eq. 17, up to a factor and a constant a cluster, [B, N].
Assign = Callable[[Tensor], tuple[Tensor, Tensor]]


def kmeans(
    x: Tensor, init: Tensor, weight: Tensor | None = None, iters: int = 5
) -> tuple[Tensor, Tensor]:
    """K-Means of the tokens ``x`` [B, N, C].

    Args:
        x (Tensor): Tokens.
        init (Tensor): Indices [B, K] of the tokens to start from.
        weight (Tensor, optional): Weights [B, N] >= 0, 1 by default.
        iters (int): Number of iterations.

    Returns:
        tuple[Tensor, Tensor]: The cluster of each token, [B, N], and the
        centers, [B, K, C], through which gradients reach tokens and weights.
    """
    _check(x, init, weight, iters)
    with torch.autocast(x.device.type, enabled=False):
        points, weight, origin = _prepare(x, weight)
        with torch.no_grad():
            centers = take(points, init)
            for _ in range(iters - 1):
                labels = _nearest(points, centers)
                centers = _means_or(centers, points, labels, weight)
            labels = _nearest(points, centers)
        centers = _means_or(centers, points, labels, weight) + origin
    return labels, centers.to(x.dtype)


@torch.no_grad()
def kmedoids(
    x: Tensor, init: Tensor, weight: Tensor | None = None, iters: int = 5
) -> tuple[Tensor, Tensor]:
    """K-Medoids of the tokens ``x`` [B, N, C].

    Args:
        x (Tensor): Tokens.
        init (Tensor): Indices [B, K] of the tokens to start from.
        weight (Tensor, optional): Weights [B, N] >= 0, 1 by default.
        iters (int): Number of iterations.

    Returns:
        tuple[Tensor, Tensor]: The cluster of each token, [B, N], and the
        index of the token at the center of each cluster, [B, K].
    """
    _check(x, init, weight, iters)
    with torch.autocast(x.device.type, enabled=False):
        points, weight, _ = _prepare(x, weight)
        prepare = _by_table if x.shape[1] <= _TABLE else _by_tiles
        assign = prepare(points, weight)
        medoids = init
        for _ in range(iters):
            labels, cost = assign(medoids)
            medoids = _cheapest_or(medoids, cost, labels, weight)
    return labels, medoids


def _check(x: Tensor, init: Tensor, weight: Tensor | None, iters: int) -> None:
    if x.dim() != 3:
        raise ValueError(f'x must be tokens [B, N, C], but is {list(x.shape)}')
    if init.dim() != 2 or init.shape[0] != x.shape[0] or not init.shape[1]:
        raise ValueError(
            f'init must be the indices [{x.shape[0]}, K] of the tokens to '
            f'start from, with K >= 1, but is {list(init.shape)}'
        )
    if weight is not None and weight.shape != x.shape[:2]:
        raise ValueError(
            f'weight must be {list(x.shape[:2])}, one number a '
            f'token, but is {list(weight.shape)}'
        )
    if iters < 1:
        raise ValueError(f'iters must be at least 1, but is {iters}')


def _prepare(
    x: Tensor, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens relative to their mean, their weights, and that mean.

    Distances do not change with the origin, but the rounding error of
    |c|^2 - 2cx does.
    """
    x = x if x.dtype == torch.float64 else x.float()
    weight = x.new_ones(x.shape[:2]) if weight is None else weight.to(x.dtype)
    origin = x.detach().mean(1, keepdim=True)
    return x - origin, weight, origin


def _nearest(x: Tensor, centers: Tensor) -> Tensor:
    """The nearest center of each token (eqs. 14 and 16), [B, N]."""
    size = max(1, _TILE // centers.shape[1])
    norms = centers.square().sum(-1, keepdim=True)
    labels = [
        _first_smallest(torch.baddbmm(norms, centers, tile.mT, alpha=-2))
        for tile in x.split(size, 1)
    ]
    return torch.cat(labels, 1)


def _first_smallest(distances: Tensor) -> Tensor:
    """Which of the K distances [B, K, N] is smallest, the first if several.

    Distances that differ by rounding errors count as equal: a matrix product
    may give two identical centers different last bits.
    """
    margin = _MARGIN * torch.finfo(distances.dtype).eps
    margin = margin * distances.abs().amax(1, keepdim=True)
    smallest = distances <= distances.amin(1, keepdim=True) + margin
    return smallest.byte().max(1).indices


def _means_or(
    centers: Tensor, x: Tensor, labels: Tensor, weight: Tensor
) -> Tensor:
    """Weighted means (eq. 15), and old centers where there is no weight."""
    means = cluster_mean(x, labels, centers.shape[1], weight)
    total = cluster_sum(weight[..., None], labels, centers.shape[1])
    return torch.where(total > 0, means, centers)


def _by_table(x: Tensor, weight: Tensor) -> Assign:
    """Look up all distances in one matrix: every medoid is a token."""
    gram = x @ x.mT
    norms = gram.diagonal(dim1=1, dim2=2)
    table = torch.sub(norms[:, None] + norms[..., None], gram, alpha=2)
    table = table.clamp_(0)
    weighted = weight[..., None] * table

    def assign(medoids: Tensor) -> tuple[Tensor, Tensor]:
        labels = _first_smallest(take(table, medoids))
        cost = cluster_sum(weighted, labels, medoids.shape[1])
        return labels, cost.gather(1, labels[:, None])[:, 0]

    return assign


def _by_tiles(x: Tensor, weight: Tensor) -> Assign:
    """Compute distances when needed, for want of room for all of them.

    With m the weighted mean of a cluster and W its weight, ``sum_j w_j
    |x_i - x_j|^2 = W |x_i - m|^2 + const``: the distance to the mean ranks a
    cluster's tokens like the sum of distances to all of them.
    """

    def assign(medoids: Tensor) -> tuple[Tensor, Tensor]:
        centers = take(x, medoids)
        labels = _nearest(x, centers)
        # Relative to the old medoid, rounding errors are as small as the
        # cluster, and of a pair of tokens both are equally good.
        offset = x - take(centers, labels)
        means = cluster_mean(offset, labels, medoids.shape[1], weight)
        return labels, (offset - take(means, labels)).square().sum(-1)

    return assign


def _cheapest_or(
    medoids: Tensor, cost: Tensor, labels: Tensor, weight: Tensor
) -> Tensor:
    """The cheapest token of each cluster (eq. 17), the first if several.

    A cluster without weight keeps its old medoid.
    """
    total = cluster_sum(weight[..., None], labels, medoids.shape[1])[..., 0]
    least = cost.new_full(medoids.shape, torch.inf)
    least = least.scatter_reduce(1, labels, cost, 'amin').gather(1, labels)
    margin = 16 * _MARGIN * torch.finfo(cost.dtype).eps
    nobody = cost.shape[1]
    index = torch.arange(nobody, device=cost.device)
    index = torch.where(cost <= least * (1 + margin), index, nobody)
    first = torch.full_like(medoids, nobody)
    first = first.scatter_reduce(1, labels, index, 'amin')
    return torch.where((total > 0) & (first < nobody), first, medoids)
