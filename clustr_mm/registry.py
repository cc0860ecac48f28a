"""MMEngine's root registries.

What is registered in a root is found from every toolbox's scope, so one
registration serves mmpretrain, mmseg, mmdet and mmpose alike.
"""

from mmengine.registry import (
    DATASETS,
    HOOKS,
    LOOPS,
    METRICS,
    MODEL_WRAPPERS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    RUNNERS,
    TRANSFORMS,
    VISUALIZERS,
)

__all__ = [
    'DATASETS',
    'HOOKS',
    'LOOPS',
    'METRICS',
    'MODELS',
    'MODEL_WRAPPERS',
    'OPTIM_WRAPPERS',
    'OPTIM_WRAPPER_CONSTRUCTORS',
    'RUNNERS',
    'TRANSFORMS',
    'VISUALIZERS',
]
