"""Where the patches of an image went, and back from tokens to maps.

A :class:`Trail` follows the patches through a network that keeps, fuses,
clusters or pools their tokens. Each rule reports what it did; a feature map
is then one gather (for pooling: one interpolation), whatever was done.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .maps import map_to_tokens, tokens_to_map


class Trail:
    """Which token now stands for which patch, for a batch of images.

    Tokens, the class token not among them, are numbered in the order of their
    sequence. Those that left it are remembered at the value they had then and
    numbered behind those that are in it, the latest to leave first.

    Args:
        grid (tuple[int, int]): Height and width of the image in patches.
        track (bool): Whether to follow the patches. If not, reports cost
            nothing, and there are no maps.
    """

    def __init__(self, grid: tuple[int, int], track: bool = True):
        self.grid = tuple(grid)
        self.track = track
        # Shape of the pooled tokens: (length,) or (height, width).
        self.pooled: tuple[int, ...] | None = None
        # Number of the token that stands for each patch, [B, h * w]; None
        # while every patch stands for itself.
        self.owner: Tensor | None = None
        # For each report, the new number of each old token, [B, N].
        self.steps: list[Tensor] = []
        # Which they were, in order, by the names of the methods below; also
        # those of pooling, and if patches are not followed.
        self.reports: list[str] = []
        # Tokens [B, N] that a rule in training lets stay (1) or would remove
        # (0); they are all still there.
        self.decisions: list[Tensor] = []
        # The tokens as they were at the last decision, but for those that
        # would have left before.
        self._undecided: Tensor | None = None
        self._left: list[Tensor] = []
        # What each patch is beyond its token, [B, h * w, C], once that is
        # kept.
        self.detail: Tensor | None = None
        # What `sizes` found, or was told, since the last report.
        self._sizes: Tensor | None = None

    @property
    def num_patches(self) -> int:
        return math.prod(self.grid)

    # What a rule reports.
    def select(self, order: Tensor, num_kept: int, x: Tensor) -> None:
        """Tokens ``order[:, :num_kept]`` stay, in that order.

        The rest of ``order`` [B, N] leave with their values in ``x``
        [B, N, C].
        """
        self._report('select')
        if self.track:
            self._advance(inverse(order), order.shape[1])
            self._left.insert(0, take(x, order[:, num_kept:]))

    def fuse(self, order: Tensor, num_kept: int) -> None:
        """Like :meth:`select`, but the rest become one token, the last."""
        self._report('fuse')
        if self.track:
            rank = inverse(order).clamp(max=num_kept)
            self._advance(rank, num_kept + 1)

    def merge(
        self, labels: Tensor, num_tokens: int, sizes: Tensor | None = None
    ) -> None:
        """Token i becomes a part of the new token ``labels[:, i]``.

        Whoever knows it says how many patches each new token has, as
        ``sizes`` [B, num_tokens].
        """
        self._report('merge')
        if self.track:
            self._advance(labels, num_tokens)
            self._sizes = sizes

    def pool(self, shape: tuple[int, ...]) -> None:
        """Tokens were pooled over their sequence or grid to ``shape``."""
        self._report('pool')
        self.pooled = tuple(shape)

    def decide(self, stays: Tensor, x: Tensor) -> None:
        """In training, tokens with 0 in ``stays`` [B, N] would leave.

        All of ``x`` [B, N, C] go on, so that the decision can be learnt.
        """
        if self.track:
            self._undecided = self._as_decided(x)
        self.decisions.append(stays)

    def _as_decided(self, x: Tensor) -> Tensor:
        """Tokens, with the values that they would have left with.

        As a sum, so that decisions learn from what further blocks make of
        a token.
        """
        if not self.decisions:
            return x
        stays = self.decisions[-1][..., None].to(x.dtype)
        return stays * x + (1 - stays) * self._undecided

    def _report(self, name: str) -> None:
        """Note a report, unless it cannot follow those before."""
        if self.decisions:
            raise ValueError(
                'in training, the tokens that a rule decided about are all '
                'still there, so that no other rule can thin them after it: '
                'let the one that decides act last'
            )
        if self.pooled is not None and name != 'pool':
            raise ValueError('pooled tokens cannot be selected or merged')
        if self.pooled is None and self.reports and name == 'pool':
            raise ValueError(
                'tokens that were selected or merged have no order left to '
                'be pooled in'
            )
        self.reports.append(name)

    def _advance(self, step: Tensor, num_numbered: int) -> None:
        """Renumber: old token i of the sequence is now ``step[:, i]``.

        ``num_numbered`` counts the tokens that this report numbers, kept or
        leaving. What left before moves behind these.
        """
        self.steps.append(step)
        self._sizes = None
        if self.owner is None:
            self.owner = step
            return
        if not self._left:
            self.owner = step.gather(1, self.owner)
            return
        length = step.shape[1]
        moved = self.owner + (num_numbered - length)
        # There is no token to look up once all have left.
        if length:
            here = step.gather(1, self.owner.clamp(max=length - 1))
            moved = torch.where(self.owner < length, here, moved)
        self.owner = moved

    # What can be asked.
    def bank(self, x: Tensor) -> Tensor:
        """Tokens ``x`` [B, N, C] followed by those that left, by number."""
        x = self._as_decided(x)
        return torch.cat([x, *self._left], 1) if self._left else x

    def spread(self, bank: Tensor) -> Tensor:
        """Give each patch the value of its token: [B, h * w, C]."""
        if self.pooled is not None:
            return _unpool(bank, self.pooled, self.grid)
        return bank if self.owner is None else take(bank, self.owner)

    def patches(self, x: Tensor) -> Tensor:
        """Value of each patch, [B, h * w, C], with tokens ``x`` [B, N, C]."""
        values = self.spread(self.bank(x))
        return values if self.detail is None else values + self.detail

    def so_far(self) -> 'Trail':
        """The trail up to here, which further reports do not change.

        Without decisions, which no report follows.
        """
        copy = Trail(self.grid, self.track)
        copy.pooled, copy.owner = self.pooled, self.owner
        copy.reports, copy._left = list(self.reports), list(self._left)
        copy.detail = self.detail
        return copy

    def keep_detail(self, before: 'Trail', old: Tensor, new: Tensor) -> None:
        """Let the patches be what they were ``before`` a rule acted.

        Once a rule has made tokens ``new`` [B, K, C] of ``old`` [B, N, C].
        What blocks add to a token is added to all of its patches. Patches
        whose tokens stay or leave as they are have no detail.
        """
        if set(self.reports[len(before.reports) :]) - {'select'}:
            self.detail = before.patches(old) - self.spread(self.bank(new))

    def to_map(self, bank: Tensor) -> Tensor:
        """Feature map [B, C, h, w] of the tokens in :meth:`bank`."""
        return self.fold(self.spread(bank))

    def fold(self, patches: Tensor) -> Tensor:
        """Feature map [B, C, h, w] of the values of patches, [B, h * w, C].

        mmcv's operators, RoIAlign above all, read the memory of a map as if
        it were laid out in the order of its dimensions.
        """
        return patches.mT.contiguous().unflatten(2, self.grid)

    def mean(self, bank: Tensor) -> Tensor:
        """Mean of the tokens, each as often as it has patches: [B, C].

        Pooled tokens all have the same number of them.
        """
        pooled = self.pooled is not None
        return (bank if pooled else self.spread(bank)).mean(1)

    def sizes(self, x: Tensor) -> Tensor:
        """Number of patches of each token of ``x`` [B, N, C]: [B, N]."""
        batch, length = x.shape[:2]
        if self.owner is None:
            return torch.ones(batch, self.num_patches, device=x.device)
        if self._sizes is None:
            numbered = length + sum(left.shape[1] for left in self._left)
            sizes = torch.zeros(batch, numbered, device=x.device)
            ones = sizes.new_ones(()).expand_as(self.owner)
            sizes.scatter_add_(1, self.owner, ones)
            self._sizes = sizes[:, :length]
        return self._sizes

    def owners(
        self, batch: int, device: torch.device | str | None = None
    ) -> Tensor:
        """Number of the token of each patch, in any case, [B, h * w]."""
        if self.owner is not None:
            return self.owner
        if self.pooled is None:
            number = torch.arange(self.num_patches, device=device)
        else:
            tokens = torch.arange(math.prod(self.pooled), device=device)
            tokens = tokens[None, :, None].double()
            number = _unpool(tokens, self.pooled, self.grid, nearest=True)
        return number.long().flatten().expand(batch, -1)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Tokens ``index`` [B, K] of ``x`` [B, N, C]: [B, K, C]."""
    image = torch.arange(x.shape[0], device=x.device)[:, None]
    return take_rows(x, torch.add(index, image, alpha=x.shape[1]))


def take_rows(x: Tensor, number: Tensor) -> Tensor:
    """The same, of tokens that are numbered through all images."""
    # Whole rows of a matrix are copied an order of magnitude faster than
    # `gather` picks their elements.
    rows = x.flatten(0, 1).index_select(0, number.flatten())
    return rows.unflatten(0, number.shape)


def inverse(order: Tensor, places: Tensor | None = None) -> Tensor:
    """The place of each token in ``order`` [B, N], a permutation.

    ``places`` are the numbers 0 to N - 1, where they are at hand.
    """
    if places is None:
        places = torch.arange(order.shape[1], device=order.device)
    return torch.empty_like(order).scatter_(1, order, places.expand_as(order))


def _unpool(
    x: Tensor,
    shape: tuple[int, ...],
    grid: tuple[int, int],
    nearest: bool = False,
) -> Tensor:
    """Interpolate pooled tokens [B, N, C] to those of ``grid``.

    A sequence is interpolated as such, to its first length.
    """
    is_sequence = len(shape) == 1
    size = (math.prod(grid),) if is_sequence else grid
    mode = 'linear' if is_sequence else 'bilinear'
    if nearest:
        mode = 'nearest-exact'
    return map_to_tokens(_resize(tokens_to_map(x, shape), mode, size=size))


def _resize(
    fmap: Tensor,
    mode: str,
    size: Sequence[int] | None = None,
    scale_factor: Sequence[float] | None = None,
) -> Tensor:
    """What `F.interpolate` makes of a map [B, C, H, W] or a sequence.

    Its gradients are not deterministic on a GPU. Where they shall be, each
    dimension is resized by a product with what becomes of unit vectors.
    """
    if not torch.are_deterministic_algorithms_enabled():
        return F.interpolate(fmap, size, scale_factor, mode)
    mode = 'bilinear' if mode == 'linear' else mode
    for i, side in enumerate(fmap.shape[2:]):
        units = torch.eye(side, dtype=fmap.dtype, device=fmap.device)
        weight = F.interpolate(
            units[None, ..., None],
            None if size is None else (size[i], 1),
            None if scale_factor is None else (scale_factor[i], 1.0),
            mode,
        )[0, ..., 0]
        fmap = (fmap.movedim(i + 2, -1) @ weight).movedim(-1, i + 2)
    return fmap


def resize_positions(
    positions: Tensor,
    old: tuple[int, int],
    new: tuple[int, int],
    num_extra: int = 0,
    mode: str = 'bicubic',
    offset: float = 0.0,
) -> Tensor:
    """Resize position embeddings [1, num_extra + N, C] to another grid.

    The first ``num_extra``, which are not of patches, stay as they are. With
    an ``offset``, places are scaled as if the new grid were larger by it.
    """
    if tuple(old) == tuple(new):
        return positions
    extra, positions = positions[:, :num_extra], positions[:, num_extra:]
    fmap = positions.mT.unflatten(2, old).float()
    target = {'size': tuple(new)}
    if offset:
        scale = [(n + offset) / side for n, side in zip(new, old)]
        target = {'scale_factor': scale}
    fmap = _resize(fmap, mode, **target)
    return torch.cat([extra, fmap.flatten(2).mT.to(extra.dtype)], 1)


def resize_pooled_positions(
    positions: Tensor,
    old: tuple[int, int],
    new: tuple[int, int],
    length: int,
    mode: str = 'bicubic',
) -> Tensor:
    """Resize position embeddings [1, M, C] of a pooled sequence.

    The tokens of a sequence wind row by row through the image, so that their
    positions are resized where they lie in it: spread over the ``old`` grid
    of patches, resized to the ``new`` one, and sampled at ``length`` places.
    """
    if tuple(old) == tuple(new) and positions.shape[1] == length:
        return positions
    spread = _unpool(positions.float(), positions.shape[1:2], old)
    resized = resize_positions(spread, old, new, mode=mode)
    sampled = _resize(resized.mT, 'linear', size=(length,))
    return sampled.mT.to(positions.dtype)
