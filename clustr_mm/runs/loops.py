"""Training loops whose random numbers go on where a resumed run's were."""

from typing import Any

import torch
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from torch.utils.data import DataLoader

from clustr_mm.checkpoints import random_states
from clustr_mm.registry import LOOPS

States = dict[str, Any]


class _Resumable:
    """Of a training loop: what `RandomStatesHook` hands it, it goes on from.

    A loader draws the seed of its workers when its iterator is made, which in
    a resumed run would be once more: it has a generator of its own for that.
    """

    _states: States | None = None

    def __init__(self, runner, dataloader: DataLoader | dict, *args, **kwargs):
        super().__init__(runner, dataloader, *args, **kwargs)
        own = torch.Generator().manual_seed(torch.initial_seed())
        self.dataloader.generator = own

    def go_on_from(self, states: States) -> None:
        """Continue from these generators, once the run has come there."""
        self._states = states

    def _take_states(self) -> States | None:
        states, self._states = self._states, None
        return states


@LOOPS.register_module()
class ResumableEpochLoop(_Resumable, EpochBasedTrainLoop):
    """MMEngine's loop over epochs."""

    def run_epoch(self) -> None:
        states = self._take_states()
        if states is not None:
            random_states.write(states)
        super().run_epoch()


@LOOPS.register_module()
class ResumableIterLoop(_Resumable, IterBasedTrainLoop):
    """MMEngine's loop over iterations."""

    def run(self) -> torch.nn.Module:
        states = self._take_states()
        if states is not None:
            self.dataloader_iterator = _RestoreAfterSkipping(
                self.dataloader_iterator, self._iter, states
            )
        return super().run()


class _RestoreAfterSkipping:
    """MMEngine skips what was trained on, and may load it for that."""

    def __init__(self, iterator, num_skipped: int, states: States):
        self._iterator = iterator
        self._num_skipped = num_skipped
        self._states = states

    def skip_iter(self, num_iters: int) -> None:
        self._iterator.skip_iter(num_iters)
        self._num_skipped -= num_iters

    def __next__(self):
        if self._num_skipped == 0:
            random_states.write(self._states)
        self._num_skipped -= 1
        return next(self._iterator)
