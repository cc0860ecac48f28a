"""Clustering of tokens by density peaks (ClusTR, section 3.1).

A token is a good centre when it is dense and far from every denser one. With
``d`` the Euclidean distance over ``sqrt(C)``:

- density, eq. 1: ``log rho_i = -mean(d(i, j)^2)`` over the k nearest tokens
  j, i itself included;
- delta, eq. 2: the distance to the nearest denser token, its *parent*. The
  densest token is its own parent, and its delta its largest distance;
- decision value: ``log gamma = log rho + log delta``. The logarithms are
  compared, as ``rho * delta`` itself underflows.

The M tokens with the largest gamma become centres, and every other token
joins its parent's cluster. All is deterministic: of two equally dense tokens
the one with the lower index counts as denser, of two equal gammas the lower
index is taken first.

The result is exact, but no N x N matrix is kept. Distances are computed a
tile of rows at a time, and mostly only once: if one of a token's k nearest
neighbours is denser than it, the nearest such neighbour *is* its parent, so
that only the few tokens that are peaks among their neighbours are searched
again. All numbers of clusters share this one search.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import onednn
from .exporting import hide_from_compiler, is_exporting, ranking
from .provenance import take

# Distances in a tile: few enough to be small beside a model's activations,
# many enough to keep a processor busy.
_TILE_SIZE = {'cpu': 2**23, 'cuda': 2**26}
# The same for an image in an exported graph, to which each tile adds nodes.
_EXPORTED_TILE_SIZE = 2**24
# oneDNN takes new memory for each tile, which the system hands out quickly
# only in small pieces.
_ONEDNN_TILE_SIZE = 2**20
# With more tokens than this oneDNN is slow.
_ONEDNN_TOKENS = 2**13
# A tile of few rows would spend its time in reading the columns.
_TILE_ROWS = 384
# Distances below this many rounding errors of the squared norm count as 0.
_MARGIN = 16
# Distances in a chunk of a row, see `_smallest`.
_CHUNK_SIZE = 64


class Peaks(NamedTuple):
    """What the search finds for each token, each [B, N]."""

    log_density: Tensor
    delta: Tensor
    parent: Tensor

    @property
    def log_gamma(self) -> Tensor:
        return self.log_density + self.delta.log()


class Clusters(NamedTuple):
    """A partition of tokens.

    ``mask`` [B, M] tells which clusters exist; it is None where all of them
    do.
    """

    labels: Tensor  # [B, N]
    num_clusters: int
    mask: Tensor | None = None


@hide_from_compiler
@torch.no_grad()
def density_peaks(
    x: Tensor,
    num_clusters: Sequence[int],
    k: int = 5,
    assign: str = 'parent',
    grid: tuple[int, int] | None = None,
    window: int | None = None,
    share: float = 1.0,
) -> list[Clusters]:
    """Cluster the tokens ``x`` [B, N, C] into each of several numbers.

    Args:
        x (Tensor): Tokens. They are compared in float32 at least, whatever
            their type and the autocast state.
        num_clusters (Sequence[int]): Numbers of clusters, each in 1..N.
        k (int): Number of neighbours that tell the density.
        assign (str): 'parent', a token joins the cluster of its parent, or
            'nearest', that of the nearest centre.
        grid (tuple[int, int], optional): Height and width of the map that
            the tokens form. Needed with ``window``.
        window (int, optional): Look for neighbours and parents only within
            windows of the map, of at most this many tokens a side, at a
            cost linear in the number of tokens. The centres remain the
            largest decision values of the whole image, but there is at
            least one in each window.
        share (float): Below 1, an image takes only as many centres as hold
            this share of the decision values of all M.

    Returns:
        list[Clusters]: One for each number of clusters.
    """
    check_options(k, assign, window, share)
    _check_numbers(x.shape[1], num_clusters, grid, window)
    with torch.autocast(x.device.type, enabled=False):
        x = _centered(x)
        if window is None:
            peaks, num_roots = find_peaks(x, k), 1
        else:
            peaks, num_roots = find_peaks_in_windows(x, k, grid, window)
        order = _order_of_choice(peaks)
        clusters = []
        for m in num_clusters:
            m = max(m, num_roots)
            centers, mask = _choose_centers(
                peaks, order[:, :m], num_roots, share
            )
            if assign == 'parent':
                labels = follow_parents(peaks.parent, centers)
            else:
                labels = nearest_center(x, centers)
            clusters.append(Clusters(labels, m, mask))
    return clusters


def find_peaks(x: Tensor, k: int, absent: Tensor | None = None) -> Peaks:
    """Search the tokens ``x`` [B, N, C] for their densities and parents.

    Tokens marked in ``absent`` [B, N] are nobody's neighbour nor parent.
    """
    norms = x.square().sum(-1)
    if absent is not None:
        norms = norms.masked_fill(absent, torch.inf)

    knn, neighbours = _nearest_neighbours(x, norms, k)
    missing = knn.isinf()
    log_density = -knn.masked_fill(missing, 0).sum(-1) / (k - missing.sum(-1))
    if absent is not None:
        log_density = log_density.masked_fill(absent, -torch.inf)
    order = ranking(log_density)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(x.shape[1], device=x.device).expand_as(order)
    )

    if is_exporting():
        square, parent = _nearest_denser(x, norms, rank)
    else:
        square, parent = _nearest_denser_neighbour(knn, neighbours, rank)
        square, parent = _search_again(x, norms, rank, square, parent)

    # The densest token has no denser one: eq. 2's second case.
    root = order[:, :1]
    farthest = _farthest(x, norms, root)
    delta = _or_zero(square.scatter(1, root, farthest), norms).sqrt()
    return Peaks(log_density, delta, parent.scatter(1, root, root))


def find_peaks_in_windows(
    x: Tensor, k: int, grid: tuple[int, int], window: int
) -> tuple[Peaks, int]:
    """Search each window of the map by itself; also count the windows."""
    tokens, absent = _windows(grid, window, x.device)
    batch, (num_windows, size) = x.shape[0], tokens.shape
    peaks = find_peaks(x[:, tokens].flatten(0, 1), k, absent.repeat(batch, 1))

    # Token -> its place among the windows' tokens. One more, for those that
    # repeat another, is cut off.
    places = torch.arange(tokens.numel(), device=x.device)
    place = places.new_zeros(x.shape[1] + 1).scatter_(
        0, tokens.masked_fill(absent, x.shape[1]).flatten(), places
    )[:-1]

    def to_map(values):
        return values.view(batch, num_windows * size)[:, place]

    first = torch.arange(num_windows, device=x.device)[:, None] * size
    parent = peaks.parent.view(batch, num_windows, size) + first
    parent = tokens.flatten()[to_map(parent)]
    return Peaks(
        to_map(peaks.log_density), to_map(peaks.delta), parent
    ), num_windows


def follow_parents(parent: Tensor, centers: Tensor) -> Tensor:
    """Label each token by the first centre among its ancestors.

    A number of steps logarithmic in N suffices, as each doubles the length
    of the path that a token looks ahead.
    """
    is_center, number = _number_centers(centers, parent.shape[1])
    own = torch.arange(parent.shape[1], device=parent.device)
    ancestor = torch.where(is_center, own, parent)
    for _ in range(parent.shape[1].bit_length()):
        ancestor = ancestor.gather(1, ancestor)
    return number.gather(1, ancestor)


def nearest_center(x: Tensor, centers: Tensor) -> Tensor:
    """Label each token by the centre nearest to it, a centre by itself."""
    num_tokens = x.shape[1]
    chosen = take(x, centers.clamp_max(num_tokens - 1))
    norms = (
        chosen.square().sum(-1).masked_fill(centers == num_tokens, torch.inf)
    )
    labels = torch.empty(x.shape[1::-1], dtype=torch.long, device=x.device)
    for part, square in _distance_tiles(x, chosen, norms):
        labels[part] = square.argmin(-1)
    is_center, number = _number_centers(centers, num_tokens)
    return torch.where(is_center, number, labels.T)


def check_options(k: int, assign: str, window: int | None, share: float):
    """Raise an error unless `density_peaks` can take these options."""
    if k < 1:
        raise ValueError(f'k must be at least 1, but is {k}')
    if assign not in ('parent', 'nearest'):
        raise ValueError(
            f"assign must be 'parent' or 'nearest', but is {assign!r}"
        )
    if window is not None and window < 1:
        raise ValueError(f'window must be at least 1, but is {window}')
    if not 0 < share <= 1:
        raise ValueError(f'share must be in (0, 1], but is {share}')


def _check_numbers(
    num_tokens: int,
    num_clusters: Sequence[int],
    grid: tuple[int, int] | None,
    window: int | None,
):
    if not all(1 <= m <= num_tokens for m in num_clusters):
        raise ValueError(
            f'num_clusters must be in 1..{num_tokens}, the number of tokens, '
            f'but is {tuple(num_clusters)}'
        )
    if window and (grid is None or grid[0] * grid[1] != num_tokens):
        raise ValueError(
            'with window, grid must be the (height, width) of the '
            f'{num_tokens} tokens, but is {grid}'
        )


def _centered(x: Tensor) -> Tensor:
    """Tokens whose squared Euclidean distance is ``d^2``.

    Distances do not depend on the origin, but the rounding error of
    |a|^2 + |b|^2 - 2ab does, and is least around the mean.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return (x - x.mean(1, keepdim=True)) / math.sqrt(x.shape[-1])


def _or_zero(square: Tensor, norms: Tensor) -> Tensor:
    """Squared distances of rows; what may be a rounding error of 0 is 0.

    Else it would depend on the matrix product which of several identical
    tokens is the densest.
    """
    margin = _MARGIN * torch.finfo(square.dtype).eps * norms
    return square.masked_fill(square <= margin, 0)


def _distance_tiles(
    rows: Tensor, x: Tensor, norms: Tensor
) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """Yield the squared distances of all rows to all x, a tile at a time.

    A row's own squared norm, which changes no order within the row, is left
    for the caller to add.

    Yields:
        tuple: Which rows of which images, and their distances [T, B, N].
    """
    batch, num_rows, _ = rows.shape
    num_tokens = x.shape[1]
    by_onednn = num_tokens <= _ONEDNN_TOKENS and onednn.is_faster(x)
    size = _TILE_SIZE.get(x.device.type, _TILE_SIZE['cuda'])
    size = _ONEDNN_TILE_SIZE if by_onednn else size
    rows = -2 * rows
    if is_exporting():
        # The batch has no size yet that it could be cut by.
        height = max(1, _EXPORTED_TILE_SIZE // num_tokens)
        for start in range(0, num_rows, height):
            some = slice(start, start + height)
            tile = torch.baddbmm(norms[:, None], rows[:, some], x.mT)
            yield (some, slice(None)), tile.transpose(0, 1)
        return
    buffer = None if by_onednn else x.new_empty(0)
    for part in _tiles(num_rows, batch, num_tokens, size):
        some, images = part
        tile = rows[images, some], x[images], norms[images]
        if by_onednn:
            yield part, onednn.batched_linear(*tile)
        else:
            buffer.resize_(len(tile[0]), tile[0].shape[1], num_tokens)
            torch.baddbmm(tile[2][:, None], tile[0], tile[1].mT, out=buffer)
            yield part, buffer.transpose(0, 1)


def _tiles(
    num_rows: int, batch: int, num_tokens: int, size: int
) -> Iterator[tuple[slice, slice]]:
    """Cut rows, or else the batch, into parts of at most about this size.

    As all columns of an image are read for each of its tiles, a tile has
    many rows of one image rather than a few rows of many. The last rows
    start early enough to be as many as the others, so that some come twice.
    """
    height = max(size // num_tokens, _TILE_ROWS)
    height = math.ceil(num_rows / math.ceil(num_rows / height))
    depth = max(size // (num_tokens * height), 1)
    for image in range(0, batch, depth):
        for stop in range(height, num_rows + height, height):
            stop = min(stop, num_rows)
            yield slice(stop - height, stop), slice(image, image + depth)


def _nearest_neighbours(
    x: Tensor, norms: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """Squared distances to the k nearest tokens and their indices.

    Where there are fewer than k tokens, the rest are infinitely far.
    """
    batch, num_tokens, _ = x.shape
    short = (
        -num_tokens % _CHUNK_SIZE
        if num_tokens > _CHUNK_SIZE
        else max(k - num_tokens, 0)
    )
    columns = F.pad(x, (0, 0, 0, short))
    column_norms = F.pad(norms, (0, short), value=torch.inf)
    knn = x.new_empty(num_tokens, batch, k)
    neighbours = torch.empty_like(knn, dtype=torch.long)
    for part, square in _distance_tiles(x, columns, column_norms):
        knn[part], neighbours[part] = _smallest(square, k)
    knn = _or_zero(knn.transpose(0, 1) + norms[..., None], norms[..., None])
    return knn, neighbours.transpose(0, 1).clamp_max(num_tokens - 1)


def _smallest(square: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row [..., N] and their places.

    They lie in the k chunks of the row with the smallest minima, and minima
    of chunks are found faster than an order of single values.
    """
    # Rows that a window lacks are wider than a chunk only in windows of more
    # than half as many rows, so up to this k no absent chunk is among the k.
    if k > _CHUNK_SIZE // 2 or square.shape[-1] <= k * _CHUNK_SIZE:
        return _extract(square, k)
    chunks = square.unflatten(-1, (-1, _CHUNK_SIZE))
    best = _extract(chunks.amin(-1), k)[1]
    first = torch.arange(
        0, chunks[..., 0].numel(), chunks.shape[-2], device=best.device
    ).view(*best.shape[:-1], 1)
    candidates = (
        chunks.flatten(0, -2)
        .index_select(0, (best + first).flatten())
        .view(*best.shape[:-1], -1)
    )
    values, place = _extract(candidates, k)
    chunk = best.gather(-1, place // _CHUNK_SIZE)
    return values, chunk * _CHUNK_SIZE + place % _CHUNK_SIZE


def _extract(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row by what is faster; may destroy the rows."""
    if values.shape[-1] >= 320 or values.is_cuda:
        return values.topk(k, largest=False)
    smallest, places = [], []
    for _ in range(k):
        value, place = values.min(-1, keepdim=True)
        values.scatter_(-1, place, torch.inf)
        smallest.append(value)
        places.append(place)
    return torch.cat(smallest, -1), torch.cat(places, -1)


def _nearest_denser(
    x: Tensor, norms: Tensor, rank: Tensor
) -> tuple[Tensor, Tensor]:
    """Find all parents and their squared distances by eq. 2 as it stands.

    Twice the work, but no size depends on the data.
    """
    found = [
        tile.masked_fill(rank >= rank.T[part[0], :, None], torch.inf).min(-1)
        for part, tile in _distance_tiles(x, x, norms)
    ]
    square, parent = (torch.cat(values).T for values in zip(*found))
    return square + norms, parent


def _nearest_denser_neighbour(
    knn: Tensor, neighbours: Tensor, rank: Tensor
) -> tuple[Tensor, Tensor]:
    """The parent if it is a neighbour, else something infinitely far."""
    neighbour_rank = rank.gather(1, neighbours.flatten(1)).view_as(neighbours)
    square, nearest = knn.masked_fill(
        neighbour_rank >= rank[..., None], torch.inf
    ).min(-1)
    return square, neighbours.gather(-1, nearest[..., None])[..., 0]


def _search_again(
    x: Tensor, norms: Tensor, rank: Tensor, square: Tensor, parent: Tensor
) -> tuple[Tensor, Tensor]:
    """Find the parents of tokens that are densest among their neighbours."""
    unresolved = square.isinf() & ~norms.isinf()
    # As many rows from each image as the image that needs the most. Where
    # an image needs fewer, the other rows keep what they have, so that its
    # result does not depend on the rest of the batch.
    count = max([1, *unresolved.sum(1).tolist()])
    needed, rows = unresolved.byte().topk(count)
    row_rank = rank.gather(1, rows).T[..., None]
    least = x.new_empty(rows.T.shape)
    least_at = torch.empty_like(least, dtype=torch.long)
    for part, tile in _distance_tiles(take(x, rows), x, norms):
        tile.masked_fill_(rank[part[1]] >= row_rank[part], torch.inf)
        least[part], least_at[part] = tile.min(-1)
    needed = needed.bool()
    found = least.T + norms.gather(1, rows)
    found = torch.where(needed, found, square.gather(1, rows))
    found_parent = torch.where(needed, least_at.T, parent.gather(1, rows))
    return square.scatter(1, rows, found), parent.scatter(
        1, rows, found_parent
    )


def _farthest(x: Tensor, norms: Tensor, rows: Tensor) -> Tensor:
    """The largest squared distance [B, R] from each of the given tokens."""
    present = norms.masked_fill(norms.isinf(), -torch.inf)
    farthest = x.new_empty(rows.T.shape)
    for part, tile in _distance_tiles(take(x, rows), x, present):
        farthest[part] = tile.amax(-1)
    return farthest.T + norms.gather(1, rows)


def _order_of_choice(peaks: Peaks) -> Tensor:
    """Tokens in the order in which they become centres: roots first."""
    own = torch.arange(peaks.parent.shape[1], device=peaks.parent.device)
    log_gamma = peaks.log_gamma.masked_fill(peaks.parent == own, torch.inf)
    return ranking(log_gamma)


def _choose_centers(
    peaks: Peaks, candidates: Tensor, num_roots: int, share: float
) -> tuple[Tensor, Tensor | None]:
    """Centres [B, M] in index order, and which of them exist if not all.

    A centre that does not exist has the index N, beyond all tokens.
    """
    if share == 1:
        return candidates.sort(1).values, None
    gamma = peaks.log_gamma.gather(1, candidates).softmax(1)
    held_before = gamma.cumsum(1) - gamma
    exists = held_before < share
    exists[:, :num_roots] = True
    num_tokens = peaks.parent.shape[1]
    centers = candidates.masked_fill(~exists, num_tokens).sort(1).values
    return centers, centers < num_tokens


def _number_centers(centers: Tensor, num_tokens: int) -> tuple[Tensor, Tensor]:
    """Which tokens are centres, and the number of the last one up to each."""
    is_center = torch.zeros(
        centers.shape[0],
        num_tokens + 1,
        dtype=torch.bool,
        device=centers.device,
    )
    is_center = is_center.scatter_(1, centers, True)[:, :num_tokens]
    # With NaN among the distances the first token may lead to no centre.
    return is_center, (is_center.cumsum(1) - 1).clamp_min(0)


def _windows(
    grid: tuple[int, int], window: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cut a map into windows of almost equal size, at most ``window`` wide.

    Returns:
        tuple[Tensor, Tensor]: The tokens of each window [W, S], and a mask
        of those that repeat another one to fill the window up.
    """
    index, repeated = [], []
    for size in grid:
        count = math.ceil(size / window)
        width = math.ceil(size / count)
        start = torch.arange(count, device=device) * size // count
        end = torch.arange(1, count + 1, device=device) * size // count
        place = start[:, None] + torch.arange(width, device=device)
        index.append(place.clamp_max(size - 1))
        repeated.append(place >= end[:, None])
    rows, columns = index
    tokens = rows[:, None, :, None] * grid[1] + columns[:, None]
    absent = repeated[0][:, None, :, None] | repeated[1][:, None]
    return tokens.flatten(2).flatten(0, 1), absent.flatten(2).flatten(0, 1)
