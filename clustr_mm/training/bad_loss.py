"""Stop a training whose numbers have gone bad, and say where they did."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from clustr_mm.errors import UserError
from clustr_mm.registry import HOOKS
from .hooks import unwrapped

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
    ends, with the largest activations of the last one. Until the numbers are
    good again no checkpoint is written.

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
        self._step_hook = None
        self._watch = None

    def before_train(self, runner: Runner) -> None:
        optimizer = runner.optim_wrapper.optimizer
        self._step_hook = optimizer.register_step_pre_hook(self._drop_bad)

    def _drop_bad(self, optimizer: torch.optim.Optimizer, *_) -> None:
        """Have the optimizer skip gradients that are not finite.

        Distributed processes agree, as their gradients are the same.
        """
        params = [
            param
            for group in optimizer.param_groups
            for param in group['params']
            if param.grad is not None
        ]
        if not _finite([param.grad for param in params]):
            self._dropped = True
            for param in params:
                param.grad = None

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs=None
    ) -> None:
        loss = (outputs or {}).get('loss', 0.0)
        loss_is_bad = not math.isfinite(float(loss))
        if not (loss_is_bad or self._dropped):
            if self._in_a_row:
                self._recover(runner)
            return
        self._dropped = False
        self._in_a_row += 1
        what = 'loss' if loss_is_bad else 'gradients'
        runner.logger.warning(
            f'The {what} of iteration {runner.iter + 1} are not finite: '
            f'no step is taken. Pictures: {_pictures(data_batch)}'
        )
        if self._in_a_row == self.patience:
            raise UserError(self._report(runner, data_batch, what))
        if self._watch is None:
            self._watch = _Watch(unwrapped(runner))
        self._watch.clear()

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if self._in_a_row:
            raise UserError(self._report(runner, None, 'loss or gradients'))

    def after_train(self, runner: Runner) -> None:
        self._step_hook.remove()

    def _recover(self, runner: Runner) -> None:
        self._in_a_row = 0
        self._watch.remove()
        self._watch = None
        spoilt = _bad_names(unwrapped(runner).named_buffers())
        if spoilt:
            raise UserError(
                f'the loss is finite again at iteration {runner.iter + 1}, '
                f'but what the bad ones left in {_first(spoilt)} is not. '
                f'{ADVICE}'
            )

    def _report(self, runner: Runner, data_batch: Any, what: str) -> str:
        message = (
            f'the {what} were not finite for {self._in_a_row} iterations in '
            f'a row, of which iteration {runner.iter + 1} is the last. '
            f'Pictures: {_pictures(data_batch)}. '
        )
        spoilt = _bad_names(unwrapped(runner).named_parameters())
        if spoilt:
            message += f'No longer finite are the weights {_first(spoilt)}. '
        if self._watch is not None:
            message += f'Largest activations: {self._watch.largest()}. '
        return message + ADVICE


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

    def clear(self) -> None:
        self.peaks = {}

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
    sums = [tensor.detach().float().abs().sum() for tensor in tensors]
    return not sums or bool(torch.stack(sums).isfinite().all())


def _bad_names(named: Iterable[tuple[str, Tensor]]) -> list[str]:
    return [name for name, tensor in named if not tensor.isfinite().all()]


def _first(names: list[str], num: int = 3) -> str:
    more = len(names) - num
    listed = ', '.join(names[:num])
    return f'{listed} and {more} more' if more > 0 else listed


def _pictures(data_batch: Any) -> str:
    """Paths of a batch's pictures, where its samples know them."""
    samples = data_batch.get('data_samples') if data_batch else None
    paths = [sample.get('img_path') for sample in samples or ()]
    return ', '.join(str(path) for path in paths if path) or 'unknown'
