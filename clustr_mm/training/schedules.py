"""Hooks that change with time how a model is trained.

Each takes what it does from the runner's progress alone, so that a resumed
run goes on where it was.
"""

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch.optim import Optimizer

from clustr_mm.backbones.evit import AttentiveTokens
from clustr_mm.registry import HOOKS
from clustr_mm.wrappers import unwrapped


def before_each_step(
    optimizer: Optimizer, act: Callable[[], None]
) -> Callable[[], None]:
    """Have ``act`` called before each step; what is returned ends that.

    So does `Optimizer.register_step_pre_hook`, but torch 2.1 calls no such
    hooks any more once it has compiled a model.
    """
    step, acts = optimizer.step, [act]

    @wraps(step)
    def acting(*args, **kwargs):
        for one in acts:
            one()
        return step(*args, **kwargs)

    optimizer.step = acting
    return acts.clear


@HOOKS.register_module()
class FreezeUntil(Hook):
    """Keep most parameters as they are until an epoch.

    Their gradients are dropped before each step, and the optimizer skips
    them: no decay, and no moments before they are trained. That suits any
    distributed wrapper, whose parameters must all take part in the backward
    pass. A clipped gradient norm counts them all the same.

    Args:
        epoch (int): The first epoch, from 0, in which all are trained.
        trained (Sequence[str]): Parts of the names of the parameters that
            are trained from the beginning.
    """

    def __init__(self, epoch: int, trained: Sequence[str]):
        if epoch < 0:
            raise ValueError(f'epoch must not be negative: {epoch}')
        self.epoch = epoch
        self.trained = tuple(trained)
        self._thaw = None

    def before_train(self, runner: Runner) -> None:
        named = list(unwrapped(runner.model).named_parameters())
        frozen = [
            param
            for name, param in named
            if not any(part in name for part in self.trained)
        ]
        if len(frozen) == len(named):
            raise ValueError(
                f'no parameter has one of {self.trained} in its name, so '
                'FreezeUntil would leave nothing to train'
            )

        def drop() -> None:
            if runner.epoch < self.epoch:
                for param in frozen:
                    param.grad = None

        self._thaw = before_each_step(runner.optim_wrapper.optimizer, drop)

    def after_train(self, runner: Runner) -> None:
        self._thaw()


@HOOKS.register_module()
class KeepRateSchedule(Hook):
    """Let the share of tokens that EViT keeps fall from 1 to its target.

    The target is what the config says for each block. The share falls along
    a half cosine between two epochs, a little with each iteration.

    Args:
        begin (int): Epoch until which all tokens are kept.
        end (int): Epoch from which on the target is.
    """

    def __init__(self, begin: int, end: int):
        if not 0 <= begin < end:
            raise ValueError(
                f'the keep rate cannot fall from epoch {begin} to {end}'
            )
        self.begin, self.end = begin, end
        self._targets: dict[AttentiveTokens, float] = {}

    def before_train(self, runner: Runner) -> None:
        self._targets = {
            module: module.keep
            for module in unwrapped(runner.model).modules()
            if isinstance(module, AttentiveTokens)
        }
        if not self._targets:
            raise ValueError(
                'KeepRateSchedule needs an EViT that keeps less than all '
                'tokens, but this model has none'
            )
        self._set(runner)

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        self._set(runner)

    def after_train(self, runner: Runner) -> None:
        for module, target in self._targets.items():
            module.keep = target

    def _set(self, runner: Runner) -> None:
        epoch = runner.iter / len(runner.train_dataloader)
        done = (epoch - self.begin) / (self.end - self.begin)
        done = min(max(done, 0.0), 1.0)
        left = (1 + math.cos(math.pi * done)) / 2
        for module, target in self._targets.items():
            module.keep = target + (1 - target) * left
        runner.message_hub.update_scalar(
            'train/keep', min(module.keep for module in self._targets)
        )
