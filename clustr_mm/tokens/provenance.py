"""Where the patches of an image went, and back from tokens to maps.

A :class:`Trail` follows the patches through a network that keeps, fuses,
clusters or pools their tokens. Each rule reports what it did; a feature map
is then one gather (for pooling: one interpolation), whatever was done.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


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
        # Tokens [B, N] that a rule in training lets stay (1) or would remove
        # (0); they are all still there.
        self.decisions: list[Tensor] = []
        self._left: list[Tensor] = []

    @property
    def num_patches(self) -> int:
        return math.prod(self.grid)

    # What a rule reports.
    def keep(self, order: Tensor, num_kept: int, x: Tensor) -> None:
        """Tokens ``order[:, :num_kept]`` stay, in that order.

        The rest of ``order`` [B, N] leave with their values in ``x``
        [B, N, C].
        """
        if self.track:
            self._left.insert(0, take(x, order[:, num_kept:]))
            self._advance(_rank(order), order.shape[1])

    def fuse(self, order: Tensor, num_kept: int) -> None:
        """Like :meth:`keep`, but the rest become one token, the last one."""
        if self.track:
            rank = _rank(order).clamp(max=num_kept)
            self._advance(rank, num_kept + 1)

    def merge(self, labels: Tensor, num_tokens: int) -> None:
        """Token i becomes a part of the new token ``labels[:, i]``."""
        if self.track:
            self._advance(labels, num_tokens)

    def pool(self, shape: tuple[int, ...]) -> None:
        """Tokens were pooled over their sequence or grid to ``shape``."""
        if self.owner is not None:
            raise ValueError(
                'tokens that were selected or merged have no order left to '
                'be pooled in'
            )
        self.pooled = tuple(shape)

    def _advance(self, step: Tensor, num_numbered: int) -> None:
        """Renumber: old token i of the sequence is now ``step[:, i]``.

        ``num_numbered`` counts the tokens that this report numbers, kept or
        leaving. What left before moves behind these.
        """
        if self.pooled is not None:
            raise ValueError('pooled tokens cannot be selected or merged')
        self.steps.append(step)
        if self.owner is None:
            self.owner = step
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
        return torch.cat([x, *self._left], 1) if self._left else x

    def spread(self, bank: Tensor) -> Tensor:
        """Give each patch the value of its token: [B, h * w, C]."""
        if self.pooled is not None:
            return _unpool(bank, self.pooled, self.grid)
        return bank if self.owner is None else take(bank, self.owner)

    def to_map(self, bank: Tensor) -> Tensor:
        """Feature map [B, C, h, w] of the tokens in :meth:`bank`.

        mmcv's operators, RoIAlign above all, read the memory of a map as if
        it were laid out in the order of its dimensions.
        """
        return self.spread(bank).mT.contiguous().unflatten(2, self.grid)

    def mean(self, bank: Tensor) -> Tensor:
        """Mean of the tokens, each as often as it has patches: [B, C].

        Pooled tokens all have the same number of them.
        """
        pooled = self.pooled is not None
        return (bank if pooled else self.spread(bank)).mean(1)

    def sizes(self, x: Tensor) -> Tensor:
        """Number of patches of each token of ``x`` [B, N, C]: [B, N]."""
        batch, length = x.shape[:2]
        ones = torch.ones(batch, self.num_patches, device=x.device)
        if self.owner is None:
            return ones
        numbered = length + sum(left.shape[1] for left in self._left)
        sizes = torch.zeros(batch, numbered, device=x.device)
        return sizes.scatter_add(1, self.owner, ones)[:, :length]

    def owners(self, batch: int, device=None) -> Tensor:
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
    # Whole rows of a matrix are copied an order of magnitude faster than
    # `gather` picks their elements.
    first = torch.arange(x.shape[0], device=x.device)[:, None] * x.shape[1]
    rows = x.flatten(0, 1).index_select(0, (index + first).flatten())
    return rows.unflatten(0, index.shape)


def _rank(order: Tensor) -> Tensor:
    """The place of each token in ``order`` [B, N], a permutation."""
    place = torch.arange(order.shape[1], device=order.device)
    return torch.zeros_like(order).scatter(1, order, place.expand_as(order))


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
    x = F.interpolate(x.mT.unflatten(2, shape), size=size, mode=mode)
    return x.flatten(2).mT


def resize_positions(
    positions: Tensor,
    old: tuple[int, int],
    new: tuple[int, int],
    num_extra: int = 0,
    mode: str = 'bicubic',
) -> Tensor:
    """Resize position embeddings [1, num_extra + N, C] to another grid.

    The first ``num_extra``, which are not of patches, stay as they are.
    """
    if tuple(old) == tuple(new):
        return positions
    extra, positions = positions[:, :num_extra], positions[:, num_extra:]
    fmap = positions.mT.unflatten(2, old).float()
    fmap = F.interpolate(fmap, size=tuple(new), mode=mode)
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
    sampled = F.interpolate(resized.mT, size=length, mode='linear')
    return sampled.mT.to(positions.dtype)
