"""What only training needs: losses, teachers, searches, hooks.

Modules with a classifier in them need MMPretrain; a config imports these by
name, through `custom_imports`.
"""

from .distillation import TokenDistiller
from .layer_decay import LayerDecayConstructor
from .ratio_loss import RatioLoss
from .schedules import FreezeUntil, KeepRateSchedule
