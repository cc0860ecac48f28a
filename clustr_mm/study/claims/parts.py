"""What a claim is made of.

An arm is a config and what is changed in it; all arms of a claim have the same
recipe. A check compares two arms seed by seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..estimates import half_width

SEEDS = (0, 1, 2)

# What the study's configs have to train and to test on, and how many pictures
# a second two cores train on; measured, or derived from what was.
WORK = {
    'vit_cifar10.py': (50000, 10000, 210),
    'evit_scheduled_cifar10.py': (50000, 10000, 250),
    'dynamicvit_cifar10.py': (50000, 10000, 140),
    'distill_evit_cifar10.py': (50000, 0, 210),
    'clustr_cifar10.py': (50000, 10000, 750),
    'fpn_vit_garments.py': (4000, 500, 35),
    'fpn_dynamicvit_garments.py': (4000, 500, 35),
    'fpn_clustr_garments.py': (4000, 500, 60),
    'fpn_clustr_large_garments.py': (4000, 500, 6),
    'mask_rcnn_vit_garments.py': (4000, 500, 18),
    'mask_rcnn_dynamicvit_garments.py': (4000, 500, 18),
    'mask_rcnn_clustr_garments.py': (4000, 500, 20),
    'mask_rcnn_clustr_crowns.py': (36, 9, 5),
}
# Two tools start, seconds.
_START = 25
# Testing is so many times as fast as training.
_FORWARD = 3


@dataclass(frozen=True)
class Arm:
    """A model and how it is trained.

    Attributes:
        config: in configs/study.
        options: what --cfg-options changes.
        starts: options that take the weights that other arms have reached
            with the same seed, and these arms.
        trained: whether it is trained; otherwise the weights of the arm that
            it starts from are tested as the options say.
    """

    config: str
    options: Mapping = field(default_factory=dict)
    starts: Mapping[str, str] = field(default_factory=dict)
    trained: bool = True

    @property
    def hours(self) -> float:
        """Of two cores that a cell is expected to take, without what it
        starts from."""
        train, test, speed = WORK[self.config]
        seconds = _START + test / speed / _FORWARD
        if self.trained:
            train = self.options.get('train_dataloader.dataset.indices', train)
            seconds += train * self.options['train_cfg.max_epochs'] / speed
        return seconds / 3600


@dataclass(frozen=True)
class Check:
    """That one arm beats another, or is hardly worse.

    Attributes:
        better, than: the arms.
        says: in words.
        margin: how far ``better`` may stay behind, in points: 0 where it
            has to be better.
        matters: the smallest difference worth telling, in points. An effect
            below it counts as none.
    """

    better: str
    than: str
    says: str
    margin: float = 0.0
    matters: float = 0.5


@dataclass(frozen=True)
class Claim:
    """Something that a paper says, or that this project relies on.

    Attributes:
        title, says: in words; whose claim it is, and of what.
        arms: in the order of the table; times are told beside the first's.
        checks: what decides.
        deviation: that is expected of a difference between two arms from
            seed to seed, in points: from the number of test pictures and
            what seeds usually change.
    """

    title: str
    says: str
    arms: Sequence[str]
    checks: Sequence[Check]
    deviation: float
    seeds: Sequence[int] = SEEDS

    @property
    def resolves(self) -> float:
        """The smallest difference that these seeds are expected to tell."""
        return half_width(self.deviation, len(self.seeds))


def epochs(number: int, pictures: int | None = None) -> dict:
    """The length of a training. Its evaluations look at a part of the test
    pictures; all of them are for the test."""
    options = {
        'train_cfg.max_epochs': number,
        'param_scheduler.1.T_max': number,
        'param_scheduler.1.end': number,
    }
    if pictures is not None:
        options['train_dataloader.dataset.indices'] = pictures
    return options


def backbone(**options) -> dict:
    return {f'model.backbone.{key}': value for key, value in options.items()}
