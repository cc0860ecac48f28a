"""Stop a training whose numbers have gone bad, and say where they did."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from mmengine.dist import all_gather_object, all_reduce, get_world_size
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from clustr_mm.errors import UserError
from clustr_mm.registry import HOOKS
from clustr_mm.tokens.compiling import may_look
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

    While all goes well an accelerator is not waited for, if the optimizer is
    a fused one: its step looks at the flag by itself, and the host does an
    iteration later.

    Args:
        patience (int): The number of iterations in a row, at least 2, as the
            activations are watched once a bad one was seen.
    """

    def __init__(self, patience: int = 3):
        if patience < 2:
            raise ValueError(f'patience must be at least 2, but is {patience}')
        self.patience = patience
        self._in_a_row = 0
        self._bad = ''
        self._peaks = ''
        self._watch = None
        self._stop_guarding = None
        # Whether gradients were bad: since the last iteration, and what the
        # optimizer was told.
        self._found = self._told = None
        self._unread = None

    def before_train(self, runner: Runner) -> None:
        optimizer = runner.optim_wrapper.optimizer
        guard = partial(self._guard, optimizer)
        self._stop_guarding = before_each_step(optimizer, guard)

    def _guard(self, optimizer: torch.optim.Optimizer) -> None:
        """Have the optimizer leave out steps along bad gradients."""
        told = getattr(optimizer, 'found_inf', None)
        if told is not None and told is not self._told:
            return  # by a loss scaler, which sees to it
        params = [
            param
            for group in optimizer.param_groups
            for param in group['params']
            if param.grad is not None
        ]
        # Replicas have the same gradients, but shards have not.
        self._found = _anywhere(_bad_among([param.grad for param in params]))
        if _listens(optimizer):
            optimizer.grad_scale, optimizer.found_inf = None, self._found
            self._told = self._found
        elif self._found:
            for param in params:
                param.grad = None

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: dict | None = None,
    ) -> None:
        loss = torch.as_tensor((outputs or {}).get('loss', 0.0)).detach()
        bad_here, found = _bad(loss), self._found
        if found is None:
            found = torch.zeros_like(bad_here)
        flags = [bad_here, _anywhere(bad_here), found.to(loss.device)]
        samples = data_batch.get('data_samples') if data_batch else None
        last = self._unread
        this = _Iteration(runner.iter + 1, samples, _OnTheWay(flags))
        self._found = self._unread = None
        if last is not None:
            self._look(runner, last)
        if may_look(loss) or self._in_a_row:
            self._look(runner, this)
        else:
            self._unread = this

    def _look(self, runner: Runner, iteration: '_Iteration') -> None:
        """Act on what an iteration's flags say."""
        bad_here, bad_loss, bad_gradients = iteration.flags.arrived()
        if not bad_loss and not bad_gradients:
            self._recover(runner)
            return
        self._in_a_row += 1
        # A single NaN among the losses spoils the gradients of all.
        concerned = bad_here or not bad_loss
        what = 'loss was' if bad_loss else 'gradients were'
        pictures = _joined(_pictures(iteration.samples) if concerned else '')
        self._bad = (
            f'iteration {iteration.number}, whose {what} NaN or infinite, '
            f'with the pictures {pictures}'
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
        if self._unread is not None:
            self._look(runner, self._unread)
        self._stop_guarding()
        if self._told is not None:
            runner.optim_wrapper.optimizer.found_inf = None

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


class _OnTheWay:
    """Flags that a device sends, waited for when they are asked for."""

    def __init__(self, flags: Sequence[Tensor]):
        flags = torch.stack(tuple(flags))
        self._flags = flags.to('cpu', non_blocking=flags.is_cuda)
        self._event = torch.cuda.Event() if flags.is_cuda else None
        if self._event is not None:
            self._event.record()

    def arrived(self) -> list[bool]:
        if self._event is not None:
            self._event.synchronize()
        return [bool(flag) for flag in self._flags.tolist()]


@dataclass
class _Iteration:
    """What is known of an iteration: whether its loss was bad in this
    process and in any, and whether its gradients were."""

    number: int
    samples: Sequence | None
    flags: _OnTheWay


def _listens(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its steps look at `found_inf`, as fused ones do for loss
    scalers."""
    return getattr(optimizer, '_step_supports_amp_scaling', False) and all(
        group.get('fused') for group in optimizer.param_groups
    )


def _bad(numbers: Tensor) -> Tensor:
    """Whether one is NaN or infinite: 1 or 0, where the numbers are."""
    # All others differ from themselves by nothing.
    return (numbers - numbers).ne(0).any().float()


def _bad_among(tensors: Iterable[Tensor]) -> Tensor:
    """Whether one has such a number, in as few launches as possible."""
    tensors = [tensor for tensor in tensors if tensor.numel()]
    if not tensors:
        return torch.zeros(())
    return _bad(torch.stack(torch._foreach_norm(tensors, torch.inf)))


def _anywhere(flag: Tensor) -> Tensor:
    """Whether it is so in any process."""
    if get_world_size() > 1:
        flag = flag.clone()
        all_reduce(flag, 'max')
    return flag


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


def _pictures(samples: Sequence | None) -> str:
    """Paths of a batch's pictures, where its samples know them."""
    paths = [sample.get('img_path') for sample in samples or ()]
    return ', '.join(str(path) for path in paths if path) or 'unknown'
