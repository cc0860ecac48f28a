"""A remaining time that counts what is not an iteration, too."""

import time

from mmengine.hooks import IterTimerHook
from mmengine.runner import EpochBasedTrainLoop, Runner

from clustr_mm.registry import HOOKS

# Iterations until caches, clocks and compilers have settled.
WARM_UP = 5
# A forward pass is about a third of a training step.
FORWARD = 1 / 3


@HOOKS.register_module()
class WholeRunTimerHook(IterTimerHook):
    """MMEngine's timer, whose ``eta`` is the end of the whole run.

    MMEngine multiplies the mean time of an iteration, its slow first ones
    among them, by the number of those to come. Here it is wall-clock time
    since the warm-up, so that checkpoints and the starts of epochs are in
    it, and validations are added: by the time the last one took or, before
    the first, as forward passes over the pictures that it will see.
    """

    def __init__(self):
        super().__init__()
        self._start: tuple[float, int] | None = None  # after how many
        self._in_validations = 0.0  # seconds since then
        self._validation: float | None = None  # seconds of the last one

    def before_val(self, runner: Runner) -> None:
        self._val_start = time.time()

    def after_val(self, runner: Runner) -> None:
        self._validation = time.time() - self._val_start
        self._in_validations += self._validation

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        super().after_train_iter(runner, *args, **kwargs)
        done = runner.iter + 1
        if self._start is None:
            # Until then, MMEngine's.
            if done - self.start_iter >= WARM_UP:
                self._start = time.time(), done
                self._in_validations = 0.0
            return
        started, first = self._start
        passed = time.time() - started - self._in_validations
        pace = passed / (done - first)
        eta = pace * (runner.max_iters - done)
        validations = _validations_left(runner, done)
        if validations:
            validation = self._validation
            if validation is None:
                validation = pace * _relative_cost(runner)
            eta += validations * validation
        runner.message_hub.update_info('eta', eta)


def _validations_left(runner: Runner, done: int) -> int:
    """How many validations will follow after ``done`` iterations."""
    loop = runner.train_loop
    if runner.val_loop is None:
        return 0
    end = runner.max_iters
    begin, interval = loop.val_begin, loop.val_interval
    if isinstance(loop, EpochBasedTrainLoop):
        length = len(loop.dataloader)
        # The epoch that just ends has its validation before it.
        done, end = (done - 1) // length, end // length
    else:
        done -= 1
    if end < begin:
        return 0
    regular = end // interval - max(done, begin - 1) // interval
    return regular + (end % interval > 0)


def _relative_cost(runner: Runner) -> float:
    """Cost of a validation, in training iterations."""
    val = runner.val_dataloader
    batches = [
        getattr(loader, 'batch_size', None) or 1
        for loader in (val, runner.train_dataloader)
    ]
    return FORWARD * len(val) * batches[0] / batches[1]
