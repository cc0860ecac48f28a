"""What the writers of all layouts have in common."""

from dataclasses import dataclass


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

    def choose(self, names):
        """Each of `names` in turn, in either split."""
        return names[self.rank % len(names)]


class Layout:
    """Turns scenes into the files of a data set.

    Args:
        classes: the names that labels count from.
    """

    def __init__(self, classes):
        self.classes = classes

    @property
    def least(self):
        """How many pictures either split needs."""
        return 1

    def paths(self, picture):
        """The files of one scene, relative to the data set's folder.

        They follow from the place alone, so that the files of a set are
        known without drawing it.
        """
        raise NotImplementedError

    def encode(self, scene, picture):
        """The contents (bytes) of the files at `paths`, in that order."""
        raise NotImplementedError

    def summary_paths(self):
        """The files that are about the set as a whole."""
        return []

    def summaries(self):
        """Their contents, once every scene has been encoded."""
        return []
