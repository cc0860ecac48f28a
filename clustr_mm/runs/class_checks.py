"""Whether the parts of a config agree on the classes of pictures."""

from mmengine.evaluator import Evaluator
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import Dataset

from clustr_mm.errors import UserError
from clustr_mm.registry import HOOKS
from clustr_mm.wrappers import unwrapped


@HOOKS.register_module()
class CheckClasses(Hook):
    """Stop a classifier whose parts have another number of classes each.

    The toolbox would stop in the first loss or, after a whole epoch, in the
    first evaluation.
    """

    def before_train(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        _check_mixing(model)
        if runner.val_loop is not None:
            _check_topk(model, runner.val_loop.evaluator, 'val_evaluator')

    def before_test(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        _check_topk(model, runner.test_loop.evaluator, 'test_evaluator')


def _num_classes(part: nn.Module | None) -> int | None:
    number = getattr(part, 'num_classes', None)
    return number if isinstance(number, int) else None


def _check_mixing(model: nn.Module) -> None:
    """Mixup and CutMix write labels as vectors, of as many numbers."""
    preprocessor = getattr(model, 'data_preprocessor', None)
    if getattr(preprocessor, 'batch_augments', None) is None:
        return
    number = _num_classes(getattr(model, 'head', None))
    if number not in (None, _num_classes(preprocessor)):
        raise UserError(
            f'model.head has {number} classes, but model.data_preprocessor '
            f'mixes pictures of {_num_classes(preprocessor)}: set num_classes '
            'of both to what the data set has'
        )


def _check_topk(model: nn.Module, evaluator: Evaluator, name: str) -> None:
    number = _num_classes(getattr(model, 'head', None))
    for metric in getattr(evaluator, 'metrics', []):
        topk = getattr(metric, 'topk', None)
        if number and isinstance(topk, tuple) and max(topk) > number:
            raise UserError(
                f'the {name} asks for the top {max(topk)} of {number} '
                f'classes: set its topk to (1,)'
            )


def check_order(dataset: Dataset, what: str) -> None:
    """Folders are labelled in the order of their names.

    The same names in another order would go unnoticed and be wrong.
    """
    folders = list(getattr(dataset, 'folder_to_idx', None) or [])
    classes = list(getattr(dataset, 'CLASSES', None) or [])
    if folders != classes and folders == sorted(classes):
        raise UserError(
            f'the classes of {what} are {classes}, but its folders are '
            f'labelled in the order {folders}: list them so'
        )
