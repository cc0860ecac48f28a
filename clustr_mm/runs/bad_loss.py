"""Stop a training whose numbers have gone bad, and say where they did."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from mmengine.dist import all_gather_object, all_reduce
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from clustr_mm.errors import UserError
from clustr_mm.registry import HOOKS
from clustr_mm.training.schedules import before_each_step
from clustr_mm.wrappers import unwrapped

ADVICE = (
    'Go on from the last checkpoint by --resume with a lower learning rate, '
    'clipped gradients (optim_wrapper.clip_grad) or without these pictures, '
    'or in full precision if it was mixed.'
)


@HOOKS.register_module()
class StopOnBadLoss(Hook):
    """End a run whose loss or gradients are NaN or infinite.

    A step along such gradients would make all weights NaN, so it is not
    taken: a single bad batch costs a warning. After several in a row the run
    ends, with the largest activations of the last one. Nor is a checkpoint
    written that has a NaN in it.

    Distributed processes leave out the same steps, end together and all say
    the same: what went wrong in those where it did.

    Args:
        patience (int): The number of iterations in a row, at least 2, as the
            activations are watched from the second on only.
    """

    def __init__(self, patience: int = 3):
        if patience < 2:
            raise ValueError(f'patience must be at least 2, but is {patience}')
        self.patience = patience
        self._in_a_row = 0
        self._dropped = False
        self._bad = ''
        self._peaks = ''
        self._stop_dropping = None
        self._watch = None

    def before_train(self, runner: Runner) -> None:
        optimizer = runner.optim_wrapper.optimizer
        drop = partial(self._drop_bad, optimizer)
        self._stop_dropping = before_each_step(optimizer, drop)

    def _drop_bad(self, optimizer: torch.optim.Optimizer) -> None:
        """Have the optimizer skip gradients that are not finite."""
        params = [
            param
            for group in optimizer.param_groups
            for param in group['params']
            if param.grad is not None
        ]
        # Replicas have the same gradients, but shards have not.
        if _anywhere(not _finite([param.grad for param in params])):
            self._dropped = True
            for param in params:
                param.grad = None

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        loss = torch.as_tensor((outputs or {}).get('loss', 0.0))
        bad_here = not loss.isfinite().all()
        bad_loss = _anywhere(bad_here)
        if not bad_loss and not self._dropped:
            self._recover(runner)
            return
        self._dropped = False
        self._in_a_row += 1
        # A single NaN among the losses spoils the gradients of all.
        concerned = bad_here or not bad_loss
        what = 'loss was' if bad_loss else 'gradients were'
        pictures = _joined(_pictures(data_batch) if concerned else '')
        self._bad = (
            f'iteration {runner.iter + 1}, whose {what} NaN or infinite, with '
            f'the pictures {pictures}'
        )
        runner.logger.warning(f'No step was taken at {self._bad}')
        if self._watch is None:
            self._watch = _Watch(unwrapped(runner.model))
        else:
            self._peaks = _joined(self._watch.largest() if concerned else '')
        if self._in_a_row == self.patience:
            self._stop(f'after {self.patience} bad iterations in a row')
        self._watch.peaks = {}

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        # Only the first process comes here, with weights that all share.
        names = _with_nan(checkpoint['state_dict'].items())
        if names:
            self._stop(f'as the weights {names} have become NaN')

    def after_train(self, runner: Runner) -> None:
        self._stop_dropping()

    def _recover(self, runner: Runner) -> None:
        if self._in_a_row == 0:
            return
        self._in_a_row = 0
        self._watch.remove()
        self._watch = None
        self._peaks = ''
        # A batch norm's averages do not recover.
        names = _joined(_with_nan(unwrapped(runner.model).named_buffers()))
        if names:
            self._stop(f'as the statistics {names} have become NaN')

    def _stop(self, why: str) -> NoReturn:
        message = f'the run was stopped {why}'
        if self._bad:
            message += f'. The last bad one was {self._bad}'
        if self._peaks:
            message += f'. Largest activations: {self._peaks}'
        raise UserError(f'{message}. {ADVICE}')


class _Watch:
    """The largest absolute value that each innermost module puts out."""

    def __init__(self, model: nn.Module):
        self.peaks: dict[str, float] = {}
        self._handles = [
            module.register_forward_hook(self._note(name))
            for name, module in model.named_modules()
            if not any(module.children())
        ]

    def _note(self, name: str) -> Callable:
        def note(module: nn.Module, args: tuple, output: Any) -> None:
            for tensor in _tensors(output):
                peak = tensor.detach().abs().max().item()
                # A NaN is never less; the first one stays.
                if not peak <= self.peaks.get(name, -1.0):
                    self.peaks[name] = peak

        return note

    def largest(self, num: int = 4) -> str:
        """The largest finite ones, and where the first other one is."""
        finite = {k: v for k, v in self.peaks.items() if math.isfinite(v)}
        names = sorted(finite, key=finite.get, reverse=True)[:num]
        parts = [f'{name} {finite[name]:.3g}' for name in names]
        # In the order of their first run.
        bad = [name for name in self.peaks if name not in finite]
        if bad:
            parts.append(f'first not finite in {bad[0]} {self.peaks[bad[0]]}')
        return ', '.join(parts)

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def _tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        if output.is_floating_point() and output.numel():
            yield output
    elif isinstance(output, (Mapping, Sequence)):
        values = output.values() if isinstance(output, Mapping) else output
        for value in values if not isinstance(output, str) else ():
            yield from _tensors(value)


def _finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all are, with a single wait for an accelerator."""
    sums = [tensor.sum(dtype=torch.float32) for tensor in tensors]
    return not sums or bool(torch.stack(sums).isfinite().all())


def _anywhere(flag: bool) -> bool:
    """Whether it is so in any process."""
    flag = torch.tensor(float(flag))
    all_reduce(flag, 'max')
    return bool(flag)


def _joined(text: str) -> str:
    """What those processes say that have something to say."""
    return ', '.join(dict.fromkeys(filter(None, all_gather_object(text))))


def _with_nan(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Names of those that have a NaN, the first three of them."""
    names = [
        name
        for name, tensor in tensors
        if isinstance(tensor, Tensor) and tensor.isnan().any()
    ]
    more = f' and {len(names) - 3} more' if len(names) > 3 else ''
    return ', '.join(names[:3]) + more


def _pictures(data_batch: Any) -> str:
    """Paths of a batch's pictures, where its samples know them."""
    samples = data_batch.get('data_samples') if data_batch else None
    paths = [sample.get('img_path') for sample in samples or ()]
    return ', '.join(str(path) for path in paths if path) or 'unknown'
