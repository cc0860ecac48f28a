"""Weighted K-Means and K-Medoids of tokens (Token Pooling, appendix A).

Both look for K centers that make ``sum_i w_i |x_i - c_a(i)|^2`` small, eq. 13,
where ``a(i)`` is the cluster of token i: they assign each token to the nearest
center, move each center to the best place among its tokens, and repeat. The
best place is the weighted mean in K-Means, and one of the tokens in K-Medoids.

An iteration ends with the centers, so that a token's cluster is the one whose
center was made of it, which another center may be nearer to by then.

Clusters start from given tokens, and all is deterministic: of equally good
choices, rounding errors apart, the one with the lower index is taken. A
cluster that is left without tokens, or whose tokens weigh nothing, keeps its
center. Distances are computed in float32 at least, whatever the tokens' type
and the autocast state. No gradient flows through the assignment.

Where the host can know, which is on a CPU, iterations end when they would
change nothing more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from .compiling import is_exporting, may_look
from .merging import cluster_mean, cluster_sum
from .trail import take, take_rows

# Distances computed at a time for an image: 16 MB in float32. Neither this
# nor the next depends on the batch, so that an image's result does not.
_TILE = 2**22
# Tokens an image up to which K-Medoids keeps a matrix of all distances.
_TABLE = 1024
# Distances are off by this many rounding errors of the squared norms.
_MARGIN = 4
# Squared norms in a table are at least this, so that costs say what weighs
# nothing: far above 0 when multiplied by a margin and a weight.
_LEAST_NORM = 1e-28
# More than there are tokens.
_BEYOND = 2**62


class Assigned(NamedTuple):
    """The cluster of each token, and what its medoid is chosen by."""

    labels: Tensor  # [B, N]
    # Of each token as its cluster's medoid (eq. 17), up to a factor and a
    # constant a cluster: what it costs at most and at least, for all that
    # is known despite rounding errors, [B, N].
    most: Tensor
    least: Tensor
    total: Tensor  # weight of each cluster, up to a factor, [B, K]


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
        labels, centers = _search_means(points, weight, init, iters)
        # A cluster without tokens, or whose tokens weigh nothing, keeps its
        # center.
        num = centers.shape[1]
        centers = cluster_mean(points, labels, num, weight, centers)
    return labels, (centers + origin).to(x.dtype)


@torch.no_grad()
def _search_means(
    x: Tensor, weight: Tensor, init: Tensor, iters: int
) -> tuple[Tensor, Tensor]:
    """The cluster of each token, and the centers that were near to it."""
    centers, slack = take(x, init), _slack(x)
    labels, num = _nearest(x, slack, centers), centers.shape[1]
    for _ in range(iters - 1):
        centers = cluster_mean(x, labels, num, weight, centers)
        before, labels = labels, _nearest(x, slack, centers)
        if _has_settled(before, labels):
            break
    return labels, centers


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
        return _search_medoids(points, weight, init, iters)


def _search_medoids(
    x: Tensor, weight: Tensor, init: Tensor, iters: int
) -> tuple[Tensor, Tensor]:
    assign = (_by_table if x.shape[1] <= _TABLE else _by_tiles)(x, weight)
    # Medoids are looked up in each iteration, so they are numbered through
    # all images.
    places = torch.arange(weight.numel(), device=x.device).view_as(weight)
    medoids = init + places[:, :1]
    for _ in range(iters):
        found = assign(medoids)
        before, medoids = medoids, _cheapest_or(medoids, places, *found)
        if _has_settled(before, medoids):
            break
    return found.labels, medoids - places[:, :1]


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


_ends_early = True


@contextmanager
def all_iterations() -> Iterator[None]:
    """Within, iterations that change nothing are not left out."""
    global _ends_early
    before, _ends_early = _ends_early, False
    try:
        yield
    finally:
        _ends_early = before


def _has_settled(before: Tensor, after: Tensor) -> bool:
    """Whether more iterations would change nothing, where it may be known."""
    return may_look(after) and _ends_early and torch.equal(before, after)


def _nearest(x: Tensor, slack: Tensor, centers: Tensor) -> Tensor:
    """The nearest center of each token (eqs. 14 and 16), [B, N].

    Distances that differ by rounding errors, which are in proportion to the
    squared norms, count as equal: a matrix product may give two identical
    centers different last bits.
    """
    size = max(1, _TILE // centers.shape[1])
    margin, norms = _margin(x), _norms(centers)[..., None]
    labels = []
    for tile, tile_slack in zip(x.split(size, 1), slack.split(size, 1)):
        # But for |x|^2, which changes no order.
        distances = torch.baddbmm(norms, centers, tile.mT, alpha=-2)
        most = torch.add(distances, norms, alpha=margin)
        least = distances.sub_(norms, alpha=margin)
        bound = most.amin(1, keepdim=True) + tile_slack[:, None]
        labels.append(_first_true(least <= bound))
    return labels[0] if len(labels) == 1 else torch.cat(labels, 1)


def _first_true(found: Tensor) -> Tensor:
    """Where in each column of [B, K, N] the first one is true: [B, N]."""
    # The same bytes; but ONNX knows nothing of bytes.
    found = found.byte() if is_exporting() else found.view(torch.uint8)
    return found.max(1).indices


def _norms(x: Tensor) -> Tensor:
    return x.square().sum(-1)


def _slack(x: Tensor) -> Tensor:
    """How far apart the squared norms of tokens put equal distances."""
    return 2 * _margin(x) * _norms(x)


def _margin(x: Tensor) -> float:
    return _MARGIN * torch.finfo(x.dtype).eps


def _by_table(x: Tensor, weight: Tensor) -> Callable[[Tensor], Assigned]:
    """Look up all distances in one matrix: every medoid is a token."""
    norms, num_tokens = _norms(x).clamp_min_(_LEAST_NORM), x.shape[1]
    both = norms[:, None] + norms[..., None]
    table = torch.baddbmm(both, x, x.mT, alpha=-2).clamp_(0)
    most = torch.add(table, both, alpha=_margin(x))
    least = torch.sub(table, both, alpha=_margin(x))
    bounds = torch.cat([most, least], 2)
    # What is summed over clusters, in one go.
    weighted = weight[..., None] * bounds

    def assign(medoids: Tensor) -> Assigned:
        rows = take_rows(bounds, medoids)
        most, least = rows.split(num_tokens, 2)
        labels = _first_true(least <= most.amin(1, keepdim=True))
        sums = cluster_sum(weighted, labels, medoids.shape[1])
        own = labels[:, None, None].expand(-1, -1, 2, -1)
        costs = sums.unflatten(2, (2, -1)).gather(1, own)
        # What the first token would cost is 0 for want of weight alone.
        return Assigned(labels, *costs[:, 0].unbind(1), sums[..., 0])

    return assign


def _by_tiles(x: Tensor, weight: Tensor) -> Callable[[Tensor], Assigned]:
    """Compute distances when needed, for want of room for all of them.

    With m the weighted mean of a cluster and W its weight, ``sum_j w_j
    |x_i - x_j|^2 = W |x_i - m|^2 + const``: the distance to the mean ranks a
    cluster's tokens like the sum of distances to all of them.
    """

    slack = _slack(x)

    def assign(medoids: Tensor) -> Assigned:
        centers = take_rows(x, medoids)
        labels = _nearest(x, slack, centers)
        # Relative to the old medoid, rounding errors are as small as the
        # cluster, and of a pair of tokens both are equally good.
        offset = x - take(centers, labels)
        means = cluster_mean(offset, labels, medoids.shape[1], weight)
        cost = _norms(offset - take(means, labels))
        total = cluster_sum(weight[..., None], labels, medoids.shape[1])
        doubt = 8 * _margin(x) * cost
        return Assigned(labels, cost + doubt, cost - doubt, total[..., 0])

    return assign


def _cheapest_or(
    medoids: Tensor,
    places: Tensor,
    labels: Tensor,
    most: Tensor,
    least: Tensor,
    total: Tensor,
) -> Tensor:
    """The cheapest token of each cluster (eq. 17), the first if several.

    A cluster without weight keeps its old medoid.
    """
    bound = most.new_full(medoids.shape, torch.inf)
    bound.scatter_reduce_(1, labels, most, 'amin')
    is_dear = least > bound.gather(1, labels)
    index = torch.add(places, is_dear, alpha=_BEYOND)
    first = torch.full_like(medoids, _BEYOND)
    first.scatter_reduce_(1, labels, index, 'amin')
    return torch.where(total > 0, first, medoids)
