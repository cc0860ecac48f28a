"""What our tools replace in torch and MMEngine for the whole process.

All of it is here: the last resort, for what no config reaches. Whoever runs
a config by other tools runs without.

``torch.load``
    by `safe_loading.load`. Our own code calls that by itself; these call
    ``torch.load``, and no argument of theirs says by what else to open files:

    - MMEngine's ``CheckpointLoader``: ``load_from``, ``resume`` and all that
      is initialised by ``Pretrained``, in ``runner/checkpoint.py``; for
      addresses of the network, in ``utils/dl_utils/hub.py``;
    - MMPretrain's ``SwAVHook``, retrievers, ``VectorQuantizer``-s and
      multimodal models, which open files of their own;
    - plug-ins of a user's.

``Pretrained`` among the initialisers
    by one that refuses a file of which nothing fits. MMEngine and backbones
    of all toolboxes compare the name with ``'Pretrained'``, so that another
    name in a config would have them treat the weights as random ones.

Two more replace something of a single object, whoever runs the config: they
stand in it by the name of a hook or of the runner.

``step`` of an optimizer
    by `training.schedules.before_each_step`, for the hooks `StopOnBadLoss` and
    `FreezeUntil`: MMEngine has no hook between the gradients and the step,
    and torch 2.1 drops the hooks that torch has for it once it compiles a
    model. Wrappers of optimizers differ in what they do right before the
    step, such as to unscale and to clip, so that each, those of users
    included, would need a subclass. The schedulers of torch and MMEngine
    replace ``step``, too.

``pipeline`` of a data set
    by `runs.label_checks.name_files`, for the runners of `runs.runner`, as
    MMDetection's ``PipelineSwitchHook`` does. A hook would come too late: a
    loop starts the workers of its loader as it is built. A transform around
    the others in the config would hide them from all who look for them there,
    such as the toolboxes' inferencers.
"""

import functools

import torch
from mmengine.registry import WEIGHT_INITIALIZERS

from . import safe_loading
from .compatibility import CheckedPretrainedInit


def install(trusted: bool = False) -> None:
    """Have all of this process open and use checkpoints with care.

    Args:
        trusted (bool): Whether files may run programs all the same.
    """
    safe_loading.trust_all(trusted)
    torch.load = _load
    WEIGHT_INITIALIZERS.register_module(
        name='Pretrained', module=CheckedPretrainedInit, force=True
    )


def is_installed() -> bool:
    return torch.load is _load


@functools.wraps(safe_loading._torch_load)
def _load(file, map_location=None, pickle_module=None, **kwargs):
    kwargs.pop('weights_only', None)
    return safe_loading.load(file, map_location, **kwargs)
