"""What only training needs: losses, teachers, searches, hooks.

Modules with a classifier in them need MMPretrain; a config imports these by
name, through `custom_imports`.
"""

from .bad_loss import StopOnBadLoss
from .distillation import TokenDistiller
from .hooks import FreezeUntil, KeepRateSchedule
from .layer_decay import LayerDecayConstructor
from .sharding import ShardingStrategy
