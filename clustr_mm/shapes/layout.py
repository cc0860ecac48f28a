"""What the writers of all layouts have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scenes import Scene


@dataclass(frozen=True)
class Picture:
    """A picture's place in the set.

    Attributes:
        index: among all.
        split: 'train' or 'val'.
        rank: how many of its split come before it.
    """

    index: int
    split: str
    rank: int

    def choose(self, names: Sequence[str]) -> str:
        """Each of `names` in turn, in either split."""
        return names[self.rank % len(names)]


class Layout:
    """Turns scenes into the files of a data set.

    Args:
        classes: the names that labels count from.
    """

    def __init__(self, classes: Sequence[str]):
        self.classes = classes

    @property
    def least(self) -> int:
        """How many pictures either split needs."""
        return 1

    def paths(self, picture: Picture) -> list[str]:
        """The files of one scene, relative to the data set's folder.

        They follow from the place alone, so that the files of a set are
        known without drawing it.
        """
        raise NotImplementedError

    def encode(self, scene: 'Scene', picture: Picture) -> list[bytes]:
        """The contents (bytes) of the files at `paths`, in that order."""
        raise NotImplementedError

    def summary_paths(self) -> list[str]:
        """The files that are about the set as a whole."""
        return []

    def summaries(self) -> list[bytes]:
        """Their contents, once every scene has been encoded."""
        return []
