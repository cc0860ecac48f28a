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

On single objects two hooks and a runner do the same, whoever runs the config:
``step`` of an optimizer is replaced by `training.schedules.before_each_step`,
as torch 2.1 ends the hooks that it has for this once it compiles a model; and
``pipeline`` of a data set by `runs.label_checks.name_files`, as MMDetection's
``PipelineSwitchHook`` does, since a loop starts its workers as it is built.
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
