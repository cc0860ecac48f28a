"""Sums and means of tokens by cluster.

``labels`` [B, N] holds the cluster of each token, a number below
``num_clusters``. Gradients flow through tokens and weights. Sums are computed
in float32 at least: in half precision they would stop growing.

A device has a matrix of what each token weighs in each cluster, as long as it
is small: one product with it takes fewer operators than sums by index, and
adds in the same order each time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Clusters of an image up to which there is a matrix. Those of ClusTR's first
# stage at 224 x 224 make one half as large as what its FFN computes.
_MATRIX = 256


class Rows(NamedTuple):
    """The clusters of one or more clusterings, numbered one after the
    other: those of each image by itself where there is a matrix, else those
    of all images."""

    index: Tensor  # the number of each token's cluster, [S, B, N]
    num_clusters: Sequence[int]  # of each clustering in each image
    has_matrix: bool
    may_be_empty: bool  # whether there may be clusters without tokens

    @property
    def num(self) -> int:
        return self.index.shape[1] * sum(self.num_clusters)


def number_clusters(
    labels: Sequence[Tensor],
    num_clusters: Sequence[int],
    may_be_empty: bool = True,
) -> Rows:
    """Number the clusters of clusterings of the same images."""
    has_matrix = _has_matrix(labels[0], sum(num_clusters))
    # Not `len`, of which a graph for any number of images would take note.
    batch = 1 if has_matrix else labels[0].shape[0]
    image = None
    if not has_matrix:
        image = torch.arange(batch, device=labels[0].device)[:, None]
    index, start = [], 0
    for rows, m in zip(labels, num_clusters):
        if image is not None:
            rows = torch.add(rows, image, alpha=m)
        index.append(rows + batch * start if start else rows)
        start += m
    joined = index[0][None] if len(index) == 1 else torch.stack(index)
    return Rows(joined, num_clusters, has_matrix, may_be_empty)


def _has_matrix(labels: Tensor, num_clusters: int) -> bool:
    on_device = labels.device.type not in ('cpu', 'meta')
    return on_device and num_clusters <= _MATRIX


def cluster_sum(x: Tensor, labels: Tensor, num_clusters: int) -> Tensor:
    """Sum the tokens ``x`` [B, N, C] of each cluster: [B, M, C]."""
    values = _precise(x)
    if _has_matrix(labels, num_clusters):
        total = _product(_matrix(1.0, labels, num_clusters, values), values)
    else:
        rows = number_clusters([labels], [num_clusters])
        total = _sum_rows(values, rows.index.flatten(), rows.num)
        total = total.unflatten(0, (-1, num_clusters))
    return total.to(x.dtype)


def cluster_mean(
    x: Tensor,
    labels: Tensor,
    num_clusters: int,
    weight: Tensor | None = None,
    otherwise: Tensor | float = 0.0,
) -> Tensor:
    """Mean of each cluster's tokens, weighted by ``weight`` [B, N] >= 0.

    A cluster that has no token, or whose weights are all zero, is
    ``otherwise``.
    """
    total, weights = weighted_sums(x, labels, num_clusters, weight)
    mean = total / weights.clamp_min(torch.finfo(total.dtype).tiny)
    if isinstance(otherwise, Tensor):
        mean = torch.where(weights > 0, mean, otherwise)
    return mean.to(x.dtype)


def weighted_sums(
    x: Tensor, labels: Tensor, num_clusters: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Sum each cluster's tokens times ``weight`` [B, N], and its weights.

    Returns:
        tuple[Tensor, Tensor]: Sums [B, M, C] and [B, M, 1], in float32 at
        least.
    """
    values = _precise(x)
    if weight is not None:
        weight = weight.to(values.dtype)
    if _has_matrix(labels, num_clusters):
        share = 1.0 if weight is None else weight[:, None]
        matrix = _matrix(share, labels, num_clusters, values)
        return _product(matrix, values), matrix.sum(-1, keepdim=True)
    if weight is None:
        weight = values.new_ones(x.shape[:2])
    weight = weight[..., None]
    rows = number_clusters([labels], [num_clusters])
    total, weights = (
        _sum_rows(some, rows.index.flatten(), rows.num).unflatten(
            0, (-1, num_clusters)
        )
        for some in (values * weight, weight)
    )
    return total, weights


def cluster_softmax_means(
    x: Tensor, score: Tensor, rows: Rows
) -> list[Tensor]:
    """Means of tokens, weighted by a softmax within their cluster.

    Args:
        x (Tensor): Tokens [B, N, C].
        score (Tensor): What the softmax is taken of, [B, N].
        rows (Rows): Clusters of one or more clusterings.

    Returns:
        list[Tensor]: Means [B, M, C] for each clustering. A cluster that has
        no token is zero.
    """
    values, index = _precise(x), rows.index
    score = score.to(values.dtype)
    if rows.has_matrix:
        index = index.transpose(0, 1)
        score = score[:, None].expand_as(index)
        lacking = -torch.inf
        num = sum(rows.num_clusters)
        weight = _matrix(score, index, num, values, lacking).softmax(-1)
        if rows.may_be_empty:
            # Where there is no token there is no softmax.
            weight = weight.nan_to_num()
        weights = weight.split(list(rows.num_clusters), 1)
        return [_product(some, values).to(x.dtype) for some in weights]
    score, index = score.expand(index.shape), index.flatten()
    # A shift of a cluster's scores leaves its softmax unchanged, so the
    # largest one, subtracted against overflow, needs no gradient.
    peak = score.new_full((rows.num,), -torch.inf)
    peak.scatter_reduce_(0, index, score.detach().flatten(), 'amax')
    weight = (score - peak.take(rows.index)).exp()[..., None]
    # Where there is a token, the sum of weights is at least 1.
    total = _sum_rows(weight, index, rows.num, torch.finfo(peak.dtype).tiny)
    means = (_sum_rows(values * weight, index, rows.num) / total).to(x.dtype)
    batch = x.shape[0]
    return [
        some.unflatten(0, (batch, m))
        for some, m in zip(
            means.split([batch * m for m in rows.num_clusters]),
            rows.num_clusters,
        )
    ]


def _matrix(
    weight: Tensor | float,
    index: Tensor,
    num: int,
    like: Tensor,
    lacking: float = 0.0,
) -> Tensor:
    """What each token weighs in each cluster: [B, M, N].

    ``index`` [B, N], or [B, S, N] for several clusterings, has the clusters
    that it is in, and ``lacking`` stands for all others.
    """
    index = index if index.dim() == 3 else index[:, None]
    batch, _, num_tokens = index.shape
    matrix = like.new_full((batch, num, num_tokens), lacking)
    return matrix.scatter_(1, index, weight)


def _product(matrix: Tensor, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return matrix @ x


def _sum_rows(
    x: Tensor, index: Tensor, num_rows: int, start: float = 0
) -> Tensor:
    """Sum the vectors ``x`` [..., C] that go to the same row: [R, C]."""
    total = x.new_full((num_rows, x.shape[-1]), start)
    return total.index_add_(0, index, x.flatten(0, -2))


def _precise(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
