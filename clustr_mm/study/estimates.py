"""Means over seeds, and how sure they are."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Two-sided 95 % of Student's t, by degrees of freedom from 1 on.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def half_width(deviation: float, number: int) -> float:
    """Of the 95 % interval around the mean of so many numbers."""
    if number < 2:
        return math.inf
    t = _T[min(number - 2, len(_T) - 1)]
    return t * deviation / math.sqrt(number)


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval over seeds; of one number, no interval."""

    mean: float
    half: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> 'Estimate':
        deviation = statistics.stdev(numbers) if len(numbers) > 1 else 0.0
        return cls(
            statistics.fmean(numbers), half_width(deviation, len(numbers))
        )

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half

    def __str__(self) -> str:
        half = '' if math.isinf(self.half) else f' ± {self.half:.1f}'
        return f'{self.mean:.1f}{half}'
