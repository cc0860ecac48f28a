"""A training that is killed again and again ends as if it never was."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook

from clustr_mm import outputs
from clustr_mm.checkpoints.checkpoint_hook import (
    AtomicBackend,
    AtomicCheckpointHook,
)
from clustr_mm.checkpoints.resuming import newest_resumable
from clustr_mm.checkpoints.safe_loading import load
from clustr_mm.outputs import write_atomically
from clustr_mm.runs import launch
from tests import small_training
from tests.runs import TOOLS, run, run_tool, wait_for
from tests.test_training.small import classifier, runner

# A disk on which a write takes long enough to be interrupted.
SLOW_DISK = """
import os, time
fsync = os.fsync
os.fsync = lambda file: (time.sleep(0.05), fsync(file))
"""
# A disk with room for files of 200 kB: not for a checkpoint.
FULL_DISK = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
"""
SIGNALS = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]


def after(change, tool):
    """Command of a tool in a process in which something is changed first."""
    program = (
        f'import runpy, sys\nsys.argv.pop(0)\nsys.path[0] = {str(TOOLS)!r}\n'
        f'{change}\nrunpy.run_path(sys.argv[0], run_name="__main__")'
    )
    return [sys.executable, '-c', program, TOOLS / tool]


class Training:
    """A training of 12 iterations for each time that it is killed."""

    def __init__(self, folder, kills):
        folder.mkdir()
        self.work = folder / 'work'
        self.options = [
            *small_training.write(folder, random=True),
            '--cfg-options',
            f'train_cfg.max_iters={12 * (kills + 1)}',
        ]
        self.log = folder / 'log'

    def kill(self, number, moment):
        """Go on, and kill it after it has come on by a checkpoint."""
        before = self.checkpoints()
        process = subprocess.Popen(
            [*after(SLOW_DISK, 'train.py'), *self.options, '--resume'],
            stdout=self.log.open('w'),
            stderr=subprocess.STDOUT,
        )
        wait_for(lambda: self.checkpoints() - before, process, self.log)
        if number % 2:
            time.sleep(moment / 2)
        else:
            wait_for(self.is_writing, process, self.log)
        process.send_signal(SIGNALS[number % 3])
        process.wait(60)
        text = self.log.read_text()
        if process.returncode == -signal.SIGKILL:
            return
        assert process.returncode == 128 + SIGNALS[number % 3], text[-3000:]
        assert 'Traceback' not in text
        last = text.strip().splitlines()[-1]
        assert f'stopped by {SIGNALS[number % 3].name}: ' in last
        assert newest_resumable(self.work) in last
        assert '--resume' in last

    def checkpoints(self):
        return set(self.work.glob('iter_*.pth'))

    def is_writing(self):
        return any(self.work.glob('.iter_*.pth.part'))

    def losses(self):
        """By iteration, each with all that runs have had there."""
        losses = {}
        for row in small_training.logged(self.work):
            losses.setdefault(row['step'], set()).add((row['loss'], row['lr']))
        return losses


@pytest.mark.parametrize(
    'kills', [5, pytest.param(50, marks=pytest.mark.slow)]
)
def test_killed_and_resumed(kills, tmp_path):
    whole = Training(tmp_path / 'whole', kills)
    run_tool('train.py', *whole.options, cwd=tmp_path)
    killed = Training(tmp_path / 'killed', kills)
    moments = random.Random(0)
    amid_writing = 0
    for number in range(kills):
        killed.kill(number, moments.random())
        amid_writing += killed.is_writing()
        for path in killed.checkpoints():
            load(path)
        last = Path((killed.work / 'last_checkpoint').read_text())
        assert last.is_file()
    assert amid_writing
    run_tool('train.py', *killed.options, '--resume', cwd=tmp_path)

    losses = whole.losses()
    assert len(losses) == 12 * (kills + 1)
    assert killed.losses() == losses
    assert all(len(found) == 1 for found in losses.values())
    ends = [load(newest_resumable(run.work)) for run in (whole, killed)]
    for part in ('state_dict', 'optimizer'):
        first, second = (end[part].get('state', end[part]) for end in ends)
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not killed.is_writing()


class Note(Hook):
    """What was drawn: sums of the pictures and the loss, by iteration."""

    def __init__(self):
        self.drawn = {}

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        pictures = [image.sum().item() for image in data_batch['inputs']]
        self.drawn[runner.iter] = pictures, outputs['loss'].item()

    def before_val_iter(self, *args, **kwargs):
        for draw in (random.random, np.random.rand, partial(torch.rand, 1)):
            draw()


def random_training(folder, epochs, workers, resume=None):
    """Train; return what was drawn by augmentations and dropouts."""
    cfg = small_training.config(
        folder,
        random=True,
        **{
            'log_level': 'ERROR',
            'train_cfg.max_iters': 18,
            'train_dataloader.num_workers': workers,
            'default_hooks.checkpoint.interval': 6,
            'default_hooks.checkpoint.max_keep_ckpts': -1,
            # The seed is another in each run.
            'randomness': {},
        },
    )
    if epochs:
        small_training.count_epochs(cfg, 3)
    elif workers:  # They stay for the run, and what they draw is lost.
        cfg.train_dataloader.dataset.pipeline = cfg.pipeline
    if resume is not None:
        launch.resume(cfg, str(folder / 'work' / resume))
    run, note = launch.build_runner(cfg), Note()
    run.register_hook(note)
    run.train()
    return note.drawn, run.model.state_dict()


@pytest.mark.parametrize(
    ('epochs', 'workers'),
    [
        (False, 0),
        (True, 2),
        pytest.param(True, 0, marks=pytest.mark.slow),
        pytest.param(False, 2, marks=pytest.mark.slow),
    ],
)
def test_random_numbers_go_on(epochs, workers, tmp_path, monkeypatch):
    # As the tools do.
    monkeypatch.setattr(torch, 'load', load)
    whole, weights = random_training(tmp_path, epochs, workers)
    assert len({loss for _, loss in whole.values()}) == 18
    name = 'epoch_{}.pth' if epochs else 'iter_{}.pth'
    for done in (1, 2):
        resumed, ended = random_training(
            tmp_path,
            epochs,
            workers,
            name.format(done if epochs else 6 * done),
        )
        assert resumed == {i: whole[i] for i in range(6 * done, 18)}
        torch.testing.assert_close(ended, weights, rtol=0, atol=0)


@pytest.fixture
def old(tmp_path):
    path = tmp_path / 'old.pth'
    torch.save(dict(a=torch.ones(2)), path)
    return path


def test_failed_write_leaves_the_old_file(old, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, 'No space left on device')

    was = old.read_bytes()
    monkeypatch.setattr(outputs.os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'):
        write_atomically(old, b'new')
    assert old.read_bytes() == was
    assert list(old.parent.iterdir()) == [old]


@pytest.fixture
def run_and_hook(tmp_path):
    """A run that has trained an epoch and keeps a single checkpoint."""
    run = runner(
        classifier('ThinViT'),
        tmp_path,
        epochs=1,
        default_hooks=dict(
            checkpoint=dict(
                type=AtomicCheckpointHook,
                interval=1,
                max_keep_ckpts=1,
                save_best='accuracy',
                rule='greater',
            )
        ),
    )
    run.train()
    (hook,) = (h for h in run.hooks if isinstance(h, AtomicCheckpointHook))
    return run, hook


def names(folder):
    return sorted(path.name for path in folder.glob('*.pth'))


def test_outdated_is_deleted_last(run_and_hook, tmp_path, monkeypatch):
    run, hook = run_and_hook
    hook.after_val_epoch(run, dict(accuracy=0.5))
    old = ['best_accuracy_epoch_1.pth', 'epoch_1.pth']
    assert names(tmp_path) == old
    # Better ones under the same names are not taken for the old ones.
    hook.after_val_epoch(run, dict(accuracy=0.6))
    assert names(tmp_path) == old

    def full(*args):
        raise OSError(errno.ENOSPC, 'No space left on device')

    run.train_loop._epoch = 2
    with monkeypatch.context() as context:
        context.setattr(AtomicBackend, 'put', full)
        with pytest.raises(OSError, match='No space left'):
            hook.after_val_epoch(run, dict(accuracy=0.7))
        with pytest.raises(OSError, match='No space left'):
            hook.after_train_epoch(run)
    assert names(tmp_path) == old


def test_outdated_is_deleted(run_and_hook, tmp_path):
    run, hook = run_and_hook
    hook.after_val_epoch(run, dict(accuracy=0.5))
    run.train_loop._epoch = 2
    hook.after_train_epoch(run)
    hook.after_val_epoch(run, dict(accuracy=0.7))
    assert names(tmp_path) == ['best_accuracy_epoch_2.pth', 'epoch_2.pth']


def test_newest_resumable(tmp_path, capsys):
    state = dict(meta={}, message_hub={}, state_dict=dict(a=torch.ones(9)))
    for age, name in enumerate(
        ['iter_8.pth', 'iter_16.pth', 'best_a.pth', 'weights.pth', 'cut.pth']
    ):
        path = tmp_path / name
        kept = state if name[0] in 'ibc' else state['state_dict']
        torch.save(kept, path)
        os.utime(path, (age, age))
    cut = path.read_bytes()[:-100]
    path.write_bytes(cut)
    assert newest_resumable(tmp_path) == str(tmp_path / 'iter_16.pth')
    assert str(path) in capsys.readouterr().out
    assert newest_resumable(tmp_path / 'nowhere') is None


def test_full_disk(tmp_path):
    options = small_training.write(tmp_path)

    def train(iters, disk='', **kwargs):
        return run(
            *(*after(disk, 'train.py'), *options, '--resume'),
            *('--cfg-options', f'train_cfg.max_iters={iters}'),
            cwd=tmp_path,
            **kwargs,
        )

    train(2)
    text = train(4, FULL_DISK, ok=False)
    error = text[text.index('error:') :].strip()
    assert str(tmp_path / 'work') in error
    assert 'Make room' in error
    assert len(error.splitlines()) == 1
    assert 'Traceback' not in text
    work = tmp_path / 'work'
    assert newest_resumable(work) == str(work / 'iter_2.pth')
    assert not list(work.glob('.*.part'))
