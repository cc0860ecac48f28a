"""Whether a checkpoint is one of the model that it is loaded into."""

from collections.abc import Mapping
from typing import Any

from mmengine.hooks import Hook
from mmengine.model.weight_init import PretrainedInit
from mmengine.runner import BaseLoop, CheckpointLoader, Runner
from torch import nn

from clustr_mm.errors import UserError
from clustr_mm.registry import HOOKS
from . import safe_loading
from .resuming import is_resumable


@HOOKS.register_module()
class CheckCompatibility(Hook):
    """Stop before a model is used with weights that are not its own.

    MMEngine leaves at random what a checkpoint does not have, and says so in
    the log. To start a training it is enough that something fits; a test
    needs most of the weights, and a run that goes on needs all.
    """

    priority = 'VERY_HIGH'  # before a moving average takes the weights

    def after_load_checkpoint(self, runner: Runner, checkpoint: Any) -> None:
        path, resumes = runner._load_from, runner._resume
        if resumes and not is_resumable(checkpoint):
            raise UserError(
                f'{path} holds no state of a run to go on with. To start a '
                'new one from its weights, pass --cfg-options '
                f'load_from={path} in place of --resume.'
            )
        fitting, total = _count_fitting(runner, checkpoint)
        if resumes:
            fits = fitting == total
        elif isinstance(runner._train_loop, BaseLoop):
            fits = fitting > 0
        else:  # a test, which does not build it
            fits = fitting > total / 2
        if not fits:
            raise UserError(
                f'{path} is of another model than {runner.cfg.filename} '
                f'describes: of the {total} tensors of this one it has '
                f'{fitting}. Take the config that it was trained with, or '
                'another checkpoint.'
            )


def _count_fitting(runner: Runner, checkpoint: Any) -> tuple[int, int]:
    """How many of the model's tensors the file has, and of how many."""
    if not isinstance(checkpoint, Mapping):
        return 0, len(runner.model.state_dict())
    theirs = shapes(checkpoint.get('state_dict', checkpoint))
    ours = shapes(runner.model.state_dict())
    return len(theirs.items() & ours.items()), len(ours)


def shapes(state_dict: Mapping) -> dict[str, tuple[int, ...]]:
    """By name, without what wrappers put in front."""
    return {
        name.removeprefix('module.'): tuple(tensor.shape)
        for name, tensor in state_dict.items()
        if hasattr(tensor, 'shape')
    }


class CheckedPretrainedInit(PretrainedInit):
    """Refuses a file of which nothing fits the part that it is for.

    MMEngine would go on with what is random, and say so in the log.
    """

    def __call__(self, module: nn.Module) -> None:
        checkpoint = load_anywhere(self.checkpoint)
        if not isinstance(checkpoint, Mapping):
            raise UserError(
                f'{self.checkpoint} holds no weights: give a file of tensors '
                'by name'
            )
        prefix = self.prefix or ''
        theirs = shapes(checkpoint.get('state_dict', checkpoint))
        theirs = {
            name.removeprefix(prefix).removeprefix('.'): shape
            for name, shape in theirs.items()
            if name.startswith(prefix)
        }
        ours = shapes(module.state_dict())
        if not any(name in ours for name in theirs):
            raise UserError(
                f'{self.checkpoint} has none of the weights of the '
                f'{type(module).__name__} that shall start from it'
                f'{f", below {prefix}" if prefix else ""}: take a checkpoint '
                'of that, or give init_cfg another prefix'
            )
        super().__call__(module)


def load_anywhere(checkpoint: str) -> Any:
    """What is in a file, or at an address that MMEngine has access to."""
    # A published name is one, too.
    if '://' in checkpoint or checkpoint.startswith('published:'):
        return CheckpointLoader.load_checkpoint(checkpoint, 'cpu')
    return safe_loading.load(checkpoint, 'cpu')
