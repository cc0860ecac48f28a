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
the one with the lower index counts as denser, so that of several identical
tokens the first is the others' parent; of two equal gammas the lower index is
taken first.

The result is exact, but no N x N matrix is kept. Distances are computed a
tile of rows at a time, and mostly only once: if one of a token's k nearest
neighbours is denser than it, the nearest such neighbour *is* its parent, so
that only the few tokens that are peaks among their neighbours are searched
again. All numbers of clusters share this one search.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import products
from .compiling import as_operator, is_exporting, may_look, ranking
from .trail import inverse, take

# Distances in a tile: few enough to be small beside a model's activations,
# and for a processor to stay in its cache; oneDNN takes new memory for each
# tile, which the system hands out quickly only in small pieces.
_TILE_SIZE = {'cpu': 2**20, 'cuda': 2**26}
# The same for an image in an exported graph, to which each tile adds nodes.
_EXPORTED_TILE_SIZE = 2**24
# With more tokens than this oneDNN is slow.
_ONEDNN_TOKENS = 2**13
# A tile of few rows would spend its time in reading the columns.
_TILE_ROWS = 384
# Distances below this many rounding errors of the squared norm count as 0.
_MARGIN = 16
# Bytes.
_CACHE_LINE = 64
# Distances in a chunk of a row, see `_smallest`.
_CHUNK_SIZE = 64
_MOST_CHUNKS = 384

# Which rows of which images are in a tile.
Part = tuple[slice, slice]


class Peaks(NamedTuple):
    """What the search finds for each token, each [B, N]."""

    spread: Tensor  # mean squared distance to its neighbours
    delta: Tensor
    parent: Tensor

    @property
    def log_density(self) -> Tensor:
        return -self.spread

    @property
    def log_gamma(self) -> Tensor:
        return self.delta.log() - self.spread


class Clusters(NamedTuple):
    """A partition of tokens.

    ``mask`` [B, M] tells which clusters exist; it is None where all of them
    do.
    """

    labels: Tensor  # [B, N]
    num_clusters: int
    mask: Tensor | None = None

    def num_existing(self, image: int) -> int:
        if self.mask is None:
            return self.num_clusters
        return int(self.mask[image].sum())


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
    num_roots = 1
    if window is not None:
        height, width = grid
        num_roots = -(-height // window) * -(-width // window)
    numbers = [max(m, num_roots) for m in num_clusters]
    labels, counts = _cluster(
        x.detach(), numbers, k, assign, grid, window, share
    )
    masks: Sequence[Tensor | None] = [None] * len(numbers)
    if share < 1:
        masks = [
            torch.arange(m, device=x.device) < count
            for m, count in zip(numbers, counts)
        ]
    return [Clusters(*found) for found in zip(labels, numbers, masks)]


def _like_clusters(
    x: Tensor, num_clusters: Sequence[int], *args
) -> tuple[Tensor, Tensor]:
    batch, num_tokens = x.shape[:2]
    labels = x.new_empty(
        len(num_clusters), batch, num_tokens, dtype=torch.long
    )
    return labels, torch.empty_like(labels[..., :1])


@as_operator(
    '(Tensor x, SymInt[] num_clusters, int k, str assign, SymInt[]? grid, '
    'int? window, float share) -> (Tensor, Tensor)',
    _like_clusters,
)
@torch.no_grad()
def _cluster(
    x: Tensor,
    num_clusters: Sequence[int],
    k: int,
    assign: str,
    grid: tuple[int, int] | None,
    window: int | None,
    share: float,
) -> tuple[Tensor, Tensor]:
    """Labels [S, B, N], and if ``share`` is below 1 the number of clusters
    that an image has, [S, B, 1]."""
    # The first centre needs no delta, unless its share is asked for.
    measure_roots = share < 1
    with torch.autocast(x.device.type, enabled=False):
        x = _centered(x)
        if window is None:
            peaks = find_peaks(x, k, measure_roots=measure_roots)
            num_roots, longest = 1, x.shape[1]
        else:
            peaks, num_roots = find_peaks_in_windows(
                x, k, grid, window, measure_roots
            )
            longest = min(window**2, x.shape[1])
        order = _order_of_choice(peaks, measure_roots)
        counts = order.new_empty(len(num_clusters), x.shape[0], 1)
        if share < 1:
            counts = torch.stack(
                [
                    _count_share(peaks, order[:, :m], num_roots, share)
                    for m in num_clusters
                ]
            )
        limits = num_clusters if share == 1 else counts
        if assign == 'parent':
            return follow_parents(peaks.parent, order, limits, longest), counts
        labels = [
            nearest_center(x, _first_in_index_order(order[:, :m], limit))
            for m, limit in zip(num_clusters, limits)
        ]
    return torch.stack(labels), counts


def find_peaks(
    x: Tensor,
    k: int,
    absent: Tensor | None = None,
    measure_roots: bool = True,
) -> Peaks:
    """Search the tokens ``x`` [B, N, C] for their densities and parents.

    Tokens marked in ``absent`` [B, N] are nobody's neighbour nor parent.
    Unless the root is to be measured, its delta is infinite, and its parent
    anyone.
    """
    norms = x.square().sum(-1)
    if absent is not None:
        norms = norms.masked_fill(absent, torch.inf)
    # Squared distances of a row up to this one may be rounding errors of 0.
    # They are, else it would depend on the matrix product which of several
    # identical tokens is the densest.
    margin = norms * (_MARGIN * torch.finfo(x.dtype).eps)

    if looks := may_look(x):
        size, own = _CHUNK_SIZE, None
    else:
        size, own = _chunk_size(x.shape[1]), norms
    distances = _Distances(x, *_pad(x, norms, k, size), own)
    knn, *neighbours = distances.reduce(
        lambda _, tile: (
            _smallest(tile, k) if looks else [_least(tile, k, size)]
        )
    )
    knn = knn.transpose(0, 1)
    knn = _exact(knn + norms[..., None] if looks else knn, margin[..., None])
    if absent is None and k <= x.shape[1]:
        spread = knn.mean(-1)
    else:
        missing = knn.isinf()
        total = knn.masked_fill(missing, 0).sum(-1)
        spread = total / (k - missing.sum(-1))
    if absent is not None:
        spread = spread.masked_fill(absent, torch.inf)
    rank = _rank(spread)

    if looks:
        square, parent = _nearest_denser_neighbour(knn, *neighbours, rank)
        square, parent = _search_again(x, norms, margin, rank, square, parent)
        parent = _first_of_copies(parent, square == 0)
    else:
        square, parent = _nearest_denser(distances, rank, margin)
        square = _exact(square, margin)
    if measure_roots:
        # The densest token has no denser one: eq. 2's second case.
        root = rank.argmin(1, keepdim=True)
        farthest = _farthest(x, norms, margin, root)
        square = square.scatter(1, root, farthest)
        parent = parent.scatter(1, root, root)
    return Peaks(spread, square.sqrt(), parent)


def find_peaks_in_windows(
    x: Tensor,
    k: int,
    grid: tuple[int, int],
    window: int,
    measure_roots: bool = True,
) -> tuple[Peaks, int]:
    """Search each window of the map by itself; also count the windows."""
    tokens, absent = _windows(grid, window, x.device)
    batch, (num_windows, size) = x.shape[0], tokens.shape
    peaks = find_peaks(
        x[:, tokens].flatten(0, 1), k, absent.repeat(batch, 1), measure_roots
    )

    # Token -> its place among the windows' tokens. One more, for those that
    # repeat another, is cut off.
    places = torch.arange(tokens.numel(), device=x.device)
    place = places.new_zeros(x.shape[1] + 1).scatter_(
        0, tokens.masked_fill(absent, x.shape[1]).flatten(), places
    )[:-1]

    def to_map(values):
        return values.reshape(batch, num_windows * size)[:, place]

    first = torch.arange(num_windows, device=x.device)[:, None] * size
    parent = peaks.parent.view(batch, num_windows, size) + first
    parent = tokens.flatten()[to_map(parent)]
    peaks = Peaks(to_map(peaks.spread), to_map(peaks.delta), parent)
    return peaks, num_windows


def follow_parents(
    parent: Tensor,
    order: Tensor,
    counts: Sequence[int | Tensor],
    longest: int,
) -> Tensor:
    """Label each token by the first centre among its ancestors.

    Args:
        parent (Tensor): The parent of each token, [B, N].
        order (Tensor): Tokens in the order in which they become centres.
        counts (Sequence[int | Tensor]): Numbers of centres.
        longest (int): Most tokens that a path may have.

    Returns:
        Tensor: Labels [S, B, N] for each number of centres.
    """
    own = torch.arange(parent.shape[1], device=parent.device)
    place = inverse(order, own)
    is_center = _stack([place < count for count in counts])
    center = _first_that_stays(parent, is_center, own, longest)
    # Centres are numbered in their order. With NaN among the distances the
    # first token may lead to none.
    number = is_center.cumsum(2).sub_(1).clamp_min_(0)
    return number.gather(2, center)


def _stack(parts: Sequence[Tensor]) -> Tensor:
    """`torch.stack`, but of a single part no copy."""
    return parts[0][None] if len(parts) == 1 else torch.stack(parts)


def nearest_center(x: Tensor, centers: Tensor) -> Tensor:
    """Label each token by the centre nearest to it, a centre by itself.

    Centres that do not exist have an index beyond all tokens.
    """
    num_tokens = x.shape[1]
    centers = centers.clamp_max(num_tokens)
    chosen = take(x, centers.clamp_max(num_tokens - 1))
    norms = chosen.square().sum(-1)
    norms.masked_fill_(centers == num_tokens, torch.inf)
    (labels,) = _Distances(x, chosen, norms).reduce(
        lambda _, tile: [tile.argmin(-1)]
    )
    is_center = torch.zeros(
        centers.shape[0], num_tokens + 1, dtype=torch.bool, device=x.device
    )
    is_center = is_center.scatter_(1, centers, True)[:, :num_tokens]
    number = (is_center.cumsum(1) - 1).clamp_min(0)
    return torch.where(is_center, number, labels.T)


def check_options(
    k: int, assign: str, window: int | None, share: float
) -> None:
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
    |a|^2 + |b|^2 - 2ab does, and is least around the mean. In products it
    depends on where in a cache line an image begins, so that an odd number
    of channels is filled up: an image shall not depend on the others.
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = (x - x.mean(1, keepdim=True)) / math.sqrt(x.shape[-1])
    short = -x.shape[-1] % (_CACHE_LINE // x.element_size())
    return F.pad(x, (0, short)) if short else x


def _exact(square: Tensor, margin: Tensor) -> Tensor:
    """Squared distances without those that may be rounding errors of 0."""
    return square.masked_fill_(square <= margin, 0)


def _rank(spread: Tensor) -> Tensor:
    """Numbers [B, N] that are smaller the denser a token, never the same."""
    if spread.dtype == torch.float32 and not is_exporting():
        # A sort saved: the bits of a positive number grow with it.
        own = torch.arange(spread.shape[1], device=spread.device)
        return torch.add(own, spread.view(torch.int32), alpha=2**32)
    return inverse(ranking(-spread))


class _Distances:
    """The squared distances of all rows to all x, a tile at a time.

    Unless the rows' ``own`` squared norms [B, R] are given, they are left for
    the caller to add: they change no order within a row.
    """

    def __init__(
        self,
        rows: Tensor,
        x: Tensor,
        norms: Tensor,
        own: Tensor | None = None,
    ):
        self.rows, self.x, self.norms, self.own = rows, x, norms, own
        self.shape = rows.shape[1::-1]
        num_tokens = x.shape[1]
        self.buffer = self.only_tile = None
        if is_exporting():
            # The batch has no size yet that it could be cut by.
            height = max(1, _EXPORTED_TILE_SIZE // num_tokens)
            self.parts = [
                (slice(start, start + height), slice(None))
                for start in range(0, rows.shape[1], height)
            ]
            return
        by_onednn = (
            own is None
            and num_tokens <= _ONEDNN_TOKENS
            and products.is_faster(x)
        )
        size = _TILE_SIZE.get(x.device.type, _TILE_SIZE['cuda'])
        self.parts = list(_tiles(*self.shape, num_tokens, size))
        if not by_onednn:
            self.buffer = x.new_empty(0)

    def reduce(self, function: Callable) -> Sequence[Tensor]:
        """Put together what a function makes of each tile.

        It is told which rows of which images these are, may write to their
        distances [T, B, N], and returns tensors [T, B, ...]. A single tile is
        kept for the next function as this one leaves it.
        """
        together: Sequence[Tensor] = ()
        for part in self.parts:
            found = function(part, self._tile(*part))
            if found[0].shape[:2] == self.shape:
                return found
            together = together or [
                values.new_empty(*self.shape, *values.shape[2:])
                for values in found
            ]
            for joined, values in zip(together, found):
                joined[part] = values
        return together

    def _tile(self, some: slice, images: slice) -> Tensor:
        if self.only_tile is not None:
            return self.only_tile
        rows, x = self.rows[images, some], self.x[images]
        norms = self.norms[images][:, None]
        if self.buffer is None and not is_exporting():
            tile = products.batched_linear(-2 * rows, x, norms)
        else:
            start = norms.expand(-1, rows.shape[1], -1)
            out = None
            if self.buffer is not None:
                out = self.buffer.resize_(start.shape)
            if self.own is not None:
                own = self.own[images, some, None]
                start = torch.add(norms, own, out=out)
            tile = torch.baddbmm(start, rows, x.mT, alpha=-2, out=out)
            tile = tile.transpose(0, 1)
        if len(self.parts) == 1:
            self.only_tile = tile
        return tile


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
    for image in range(0, max(batch, 1), depth):
        for stop in range(height, num_rows + height, height):
            stop = min(stop, num_rows)
            yield slice(stop - height, stop), slice(image, image + depth)


def _pad(x: Tensor, norms: Tensor, k: int, size: int) -> tuple[Tensor, Tensor]:
    """Put tokens infinitely far behind ``x``, to fill a chunk or to be k."""
    num_tokens = x.shape[1]
    short = max(k - num_tokens, 0)
    if _has_chunks(num_tokens, k, size):
        short = -num_tokens % size
    if not short:
        return x, norms
    norms = F.pad(norms, (0, short), value=torch.inf)
    return F.pad(x, (0, 0, 0, short)), norms


def _smallest(square: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row [..., N] and their places."""
    if not _has_chunks(square.shape[-1], k, _CHUNK_SIZE):
        return _extract(square, k)
    chunks = square.unflatten(-1, (-1, _CHUNK_SIZE))
    best = _extract(chunks.amin(-1), k)[1]
    first = torch.arange(
        0, chunks[..., 0].numel(), chunks.shape[-2], device=best.device
    ).view(*best.shape[:-1], 1)
    candidates = (
        chunks.flatten(0, -2)
        .index_select(0, (best + first).flatten())
        .view(*best.shape[:-1], best.shape[-1] * _CHUNK_SIZE)
    )
    values, place = _extract(candidates, k)
    chunk = best.gather(-1, place // _CHUNK_SIZE)
    return values, chunk * _CHUNK_SIZE + place % _CHUNK_SIZE


def _least(square: Tensor, k: int, size: int) -> Tensor:
    """The k smallest of each row [..., N], which are left as they are, in
    any order."""
    if _has_chunks(square.shape[-1], k, size):
        chunks = square.unflatten(-1, (-1, size))
        best = chunks.amin(-1).topk(k, largest=False, sorted=False).indices
        # Not `index_select`, for which the whole tile would be copied.
        best = best[..., None].expand(*best.shape, size)
        square = chunks.gather(-2, best).flatten(-2)
        if size > _CHUNK_SIZE:
            return _least(square, k, _CHUNK_SIZE)
    return square.topk(k, largest=False, sorted=False).values


def _chunk_size(num_tokens: int) -> int:
    """On a device, where an order of more chunks takes 20 operators, and so
    few leave nothing to be filled up where that is possible."""
    size = _CHUNK_SIZE
    if num_tokens <= size * _MOST_CHUNKS:
        sizes = range(size, size // 2, -1)
        return next((s for s in sizes if num_tokens % s == 0), size)
    while num_tokens > size * _MOST_CHUNKS:
        size *= 2
    return size


def _has_chunks(num_tokens: int, k: int, size: int) -> bool:
    """Whether to look for the k smallest of a row in a few of its chunks.

    They lie in the k chunks with the smallest minima, and minima of chunks
    are found faster than an order of single values.
    """
    # Rows that a window lacks are wider than a chunk only in windows of more
    # than half as many rows, so up to this k no absent chunk is among the k.
    return k <= size // 2 and num_tokens > k * size


def _extract(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k smallest of each row by what is faster; may destroy the rows."""
    if values.shape[-1] >= 320:
        return values.topk(k, largest=False)
    smallest, places = [], []
    for _ in range(k):
        value, place = values.min(-1, keepdim=True)
        values.scatter_(-1, place, torch.inf)
        smallest.append(value)
        places.append(place)
    return torch.cat(smallest, -1), torch.cat(places, -1)


def _nearest_denser(
    distances: _Distances, rank: Tensor, margin: Tensor
) -> tuple[Tensor, Tensor]:
    """Find all parents and their squared distances by eq. 2 as it stands.

    Twice the work, but no size depends on the data. Destroys the distances.
    """
    short = distances.x.shape[1] - rank.shape[1]
    last = torch.iinfo(rank.dtype).max
    columns = F.pad(rank, (0, short), value=last) if short else rank

    def find(part: Part, tile: Tensor) -> tuple[Tensor, Tensor]:
        some, images = part
        no_denser = columns[images] >= rank[images, some].T[..., None]
        # So that the first of several identical tokens is the nearest.
        tile.clamp_(min=margin[images, some].T[..., None])
        return tile.masked_fill_(no_denser, torch.inf).min(-1)

    square, parent = distances.reduce(find)
    return square.T, parent.T


def _nearest_denser_neighbour(
    knn: Tensor, neighbours: Tensor, rank: Tensor
) -> tuple[Tensor, Tensor]:
    """The parent if it is a neighbour, else something infinitely far."""
    neighbours = neighbours.transpose(0, 1).clamp_max(rank.shape[1] - 1)
    neighbour_rank = rank.gather(1, neighbours.flatten(1)).view_as(neighbours)
    square, nearest = knn.masked_fill(
        neighbour_rank >= rank[..., None], torch.inf
    ).min(-1)
    return square, neighbours.gather(-1, nearest[..., None])[..., 0]


def _search_again(
    x: Tensor,
    norms: Tensor,
    margin: Tensor,
    rank: Tensor,
    square: Tensor,
    parent: Tensor,
) -> tuple[Tensor, Tensor]:
    """Find the parents of tokens that are densest among their neighbours."""
    unresolved = square.isinf() & ~norms.isinf()
    # As many rows from each image as the image that needs the most. Where
    # an image needs fewer, the other rows keep what they have, so that its
    # result does not depend on the rest of the batch.
    count = max([1, *unresolved.sum(1).tolist()])
    needed, rows = unresolved.byte().topk(count)
    row_rank = rank.gather(1, rows).T[..., None]

    def find(part: Part, tile: Tensor) -> tuple[Tensor, Tensor]:
        no_denser = rank[part[1]] >= row_rank[part]
        return tile.masked_fill_(no_denser, torch.inf).min(-1)

    least, least_at = _Distances(take(x, rows), x, norms).reduce(find)
    needed = needed.bool()
    found = _exact(least.T + norms.gather(1, rows), margin.gather(1, rows))
    found = torch.where(needed, found, square.gather(1, rows))
    found_parent = torch.where(needed, least_at.T, parent.gather(1, rows))
    return square.scatter(1, rows, found), parent.scatter(
        1, rows, found_parent
    )


def _first_of_copies(parent: Tensor, is_copy: Tensor) -> Tensor:
    """Parents among which the first of several identical tokens is taken.

    Which of them the search finds depends on how it breaks ties. They are
    equally dense, so that those of lower index, and in the end the first,
    are the others' ancestors.
    """
    num_tokens = parent.shape[1]
    own = torch.arange(num_tokens, device=parent.device)
    first = _first_that_stays(parent, ~is_copy, own, num_tokens)
    return torch.where(is_copy, first, parent)


def _first_that_stays(
    parent: Tensor, stays: Tensor, own: Tensor, longest: int
) -> Tensor:
    """Go from token to parent until one stays; where that ends.

    A number of steps logarithmic in that of tokens on the longest path
    suffices, as each doubles the length of the path that a token looks ahead.
    ``own`` are the tokens' numbers, 0 to N - 1.
    """
    ancestor = torch.where(stays, own, parent)
    for _ in range(longest.bit_length()):
        ancestor = ancestor.gather(-1, ancestor)
    return ancestor


def _farthest(
    x: Tensor, norms: Tensor, margin: Tensor, rows: Tensor
) -> Tensor:
    """The largest squared distance [B, R] from each of the given tokens."""
    present = norms.masked_fill(norms.isinf(), -torch.inf)
    (farthest,) = _Distances(take(x, rows), x, present).reduce(
        lambda _, tile: [tile.amax(-1)]
    )
    return _exact(farthest.T + norms.gather(1, rows), margin.gather(1, rows))


def _order_of_choice(peaks: Peaks, measured_roots: bool) -> Tensor:
    """Tokens in the order in which they become centres: roots first."""
    log_gamma = peaks.log_gamma
    if measured_roots:
        own = torch.arange(log_gamma.shape[1], device=log_gamma.device)
        log_gamma.masked_fill_(peaks.parent == own, torch.inf)
    return ranking(log_gamma)


def _count_share(
    peaks: Peaks, candidates: Tensor, num_roots: int, share: float
) -> Tensor:
    """How many of the candidates [B, M] hold the share: [B, 1]."""
    gamma = peaks.log_gamma.gather(1, candidates).softmax(1)
    before = gamma.cumsum(1) - gamma
    count = (before < share).sum(1, keepdim=True)
    return count.clamp_min(num_roots)


def _first_in_index_order(candidates: Tensor, count: int | Tensor) -> Tensor:
    """The first candidates [B, M] by index; beyond all tokens the others."""
    exists = torch.arange(candidates.shape[1], device=candidates.device)
    beyond = torch.iinfo(candidates.dtype).max
    return candidates.masked_fill(exists >= count, beyond).sort(1).values


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
