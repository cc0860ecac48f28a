"""From a config to a run.

Importing it registers the hooks, loops, wrappers and runners that `prepare`
names in a config. `sharding` is imported when a config asks for it.
"""

from clustr_mm.checkpoints import checkpoint_hook, compatibility
from . import (
    bad_loss,
    class_checks,
    cpu,
    eta,
    label_checks,
    loops,
    runner,
    summary,
)

__all__ = [
    'bad_loss',
    'checkpoint_hook',
    'class_checks',
    'compatibility',
    'cpu',
    'eta',
    'label_checks',
    'loops',
    'runner',
    'summary',
]
