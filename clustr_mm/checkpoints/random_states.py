"""Random numbers that go on where they were when a run is resumed.

MMEngine's checkpoints hold its seed alone: a resumed run would draw the
augmentations and drop paths of its first iterations once more.
"""

import random
from typing import Any

import numpy as np
import torch
from mmengine.dist import all_gather_object, get_rank, get_world_size
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

KEY = 'random_states'  # in a checkpoint


def read() -> dict[str, Any]:
    """States of all generators of this process: tensors and numbers."""
    kind, keys, *numbers = np.random.get_state()
    states = dict(
        python=random.getstate(),
        numpy=[kind, torch.from_numpy(keys.astype(np.int64)), *numbers],
        torch=torch.get_rng_state(),
    )
    if torch.cuda.is_available():
        states['cuda'] = torch.cuda.get_rng_state()
    return states


def write(states: dict[str, Any]) -> None:
    """Have all generators go on from what `read` has read."""
    random.setstate(states['python'])
    kind, keys, *numbers = states['numpy']
    # Checkpoints are opened on the device that the model is on.
    np.random.set_state((kind, keys.cpu().numpy().astype(np.uint32), *numbers))
    torch.set_rng_state(states['torch'].cpu())
    if 'cuda' in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states['cuda'].cpu())


class RandomStatesHook(Hook):
    """Keeps the generators of all processes in a run's checkpoints.

    Who saves a checkpoint calls `note` first, in each process. A training
    loop that goes on from one takes them by its ``go_on_from``. Worker
    processes of a data loader have generators of their own, which are lost.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._to_save = self._before_val = None

    def note(self) -> None:
        self._to_save = all_gather_object(read())

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if self._to_save is not None:
            checkpoint[KEY] = self._to_save
        self._to_save = None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        states = checkpoint.get(KEY)
        if not runner._resume or states is None:
            return
        if not hasattr(runner.train_loop, 'go_on_from'):
            return  # a loop of somebody else's
        if len(states) == get_world_size():
            runner.train_loop.go_on_from(states[get_rank()])
        else:
            print_log(
                f'The run to go on with had {len(states)} processes: random '
                'numbers will be others than its own.',
                'current',
            )

    # Validation leaves no trace: a run that is resumed from before it does
    # not validate again.
    def before_val(self, runner: Runner) -> None:
        self._before_val = read()

    def after_val(self, runner: Runner) -> None:
        write(self._before_val)
