"""What is claimed, which runs decide, and what would count.

Written down before the first run, the cheapest claim first. Every arm that was
run is reported.
"""

from collections.abc import Sequence

from . import clusters, dense, learning, pooling, thinning
from .parts import Arm, Check, Claim

_ROOMS = (pooling, thinning, learning, clusters, dense)
ARMS: dict[str, Arm] = {k: v for room in _ROOMS for k, v in room.ARMS.items()}
_CLAIMS = {k: v for room in _ROOMS for k, v in room.CLAIMS.items()}
# By what each adds to those before it: see `expected_hours`.
ORDER = (
    'pooling',
    'losses',
    'keep_schedule',
    'clusters',
    'clusters_dense',
    'dials',
    'dials_masks',
    'dials_boxes',
    'growth',
    'normalised',
    'pooling_tuned',
    'thinning',
    'distillation',
    'hvt',
    'thinning_dense',
    'thinning_masks',
)
CLAIMS: dict[str, Claim] = {name: _CLAIMS[name] for name in ORDER}


def expected_hours(order: Sequence[str] = ORDER) -> dict[str, float]:
    """Of two cores, that each claim takes if those before it were run."""
    done, hours = set(), {}
    for name in order:
        claim = CLAIMS[name]
        cells = {
            (start, seed)
            for arm in claim.arms
            for start in (arm, *starts_of(arm))
            for seed in claim.seeds
        }
        hours[name] = sum(ARMS[arm].hours for arm, _ in cells - done)
        done |= cells
    return hours


def starts_of(arm: str) -> list[str]:
    """All arms that one needs the weights of, and those that they need."""
    found = []
    for start in ARMS[arm].starts.values():
        found += [start, *starts_of(start)]
    return found
