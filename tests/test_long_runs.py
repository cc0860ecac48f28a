"""A run holds at its end what it held at its beginning."""

import gc
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from mmengine.hooks import Hook

from clustr_mm.runs import launch
from tests import small_training
from tests.resource_usage import WITHOUT_CACHES, children, is_running
from tests.runs import ROOT, TOOLS, run, wait_for
from tests.small_training import BACKBONES

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith('linux'), reason='/proc and malloc_trim'
)
slow = pytest.mark.slow
# Of memory, in kB, in half of the run. The log grows by a few numbers an
# iteration, and the allocator does not find the same places each time.
NOISE = 2000


def rows(folder, *args):
    """What was held in training and testing, by every tenth iteration."""
    text = run(
        *(sys.executable, '-m', 'tests.resource_usage', folder, *args),
        cwd=ROOT,
        **WITHOUT_CACHES,
    )
    phases = dict(train=[], test=[])
    for line in text.splitlines():
        if line.startswith('{"phase"'):
            row = json.loads(line)
            phases[row.pop('phase')].append(row)
    return phases


def growth(rows):
    """From the second quarter to the last, of what is always held in it."""
    quarter = len(rows) // 4
    return {
        what: min(row[what] for row in rows[-quarter:])
        - max(row[what] for row in rows[quarter : 2 * quarter])
        for what in rows[0]
    }


def assert_flat(rows):
    grown = growth(rows)
    assert grown.pop('memory') < NOISE, rows
    assert max(grown.values()) <= 0, rows


@pytest.mark.parametrize(
    ('backbone', 'iters'),
    [
        ('EViT', 60),
        *(pytest.param(name, 500, marks=slow) for name in BACKBONES),
    ],
)
def test_held_on_changing_sizes(backbone, iters, tmp_path):
    for found in rows(tmp_path, backbone, iters).values():
        assert len(found) == iters // 10
        assert_flat(found)


@slow
@pytest.mark.parametrize('leak', ['memory', 'tensors', 'files', 'processes'])
def test_leaks_are_found(leak, tmp_path):
    for found in rows(tmp_path, 'EViT', 200, leak).values():
        assert growth(found)[leak] > (NOISE if leak == 'memory' else 0)
        with pytest.raises(AssertionError):
            assert_flat(found)


def wait_for_end(processes):
    """Workers look every five seconds whether they are still needed."""
    deadline = time.monotonic() + 15
    while any(map(is_running, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


class Raise(Hook):
    def after_train_iter(self, runner, batch_idx, **kwargs):
        if runner.iter == 5:
            raise RuntimeError('in the midst of an epoch')


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_after_an_exception(persistent, tmp_path):
    """In a process that goes on, such as a notebook's."""
    before = set(children())
    with pytest.raises(RuntimeError, match='in the midst'):
        runner(tmp_path, persistent, Raise()).train()
    gc.collect()
    wait_for_end(set(children()) - before)


class CountFiles(Hook):
    def __init__(self):
        self.numbers = []

    def after_train_epoch(self, runner):
        # Those of workers that have ended are closed by and by.
        found = []
        gc.collect()
        for _ in range(20):
            found.append(len(os.listdir('/proc/self/fd')))
            time.sleep(0.05)
        self.numbers.append(min(found))


@pytest.mark.parametrize('persistent', [False, True])
def test_workers_of_several_epochs(persistent, tmp_path):
    count = CountFiles()
    before = set(children())
    runner(tmp_path, persistent, count).train()
    gc.collect()
    wait_for_end(set(children()) - before)
    assert count.numbers[1] == count.numbers[3], count.numbers


def runner(folder, persistent, hook):
    """Of four epochs of six iterations, with two workers each."""
    cfg = small_training.config(folder, log_level='ERROR')
    cfg.train_dataloader.num_workers = 2
    small_training.count_epochs(cfg, 4)
    for loader in (cfg.train_dataloader, cfg.val_dataloader):
        loader.persistent_workers = persistent
    found = launch.build_runner(cfg)
    found.register_hook(hook)
    return found


@slow
@pytest.mark.parametrize('persistent', [False, True])
@pytest.mark.parametrize(
    'end', [signal.SIGKILL, signal.SIGTERM, signal.SIGINT]
)
def test_workers_of_a_run_that_is_killed(end, persistent, tmp_path):
    config, *options = small_training.write(tmp_path)
    log = tmp_path / 'log'
    process = subprocess.Popen(
        [
            *(sys.executable, TOOLS / 'train.py', config, *options),
            *('--cfg-options', 'train_cfg.max_iters=10000'),
            'train_dataloader.num_workers=2',
            f'train_dataloader.persistent_workers={persistent}',
        ],
        stdout=log.open('w'),
        stderr=subprocess.STDOUT,
    )
    try:
        wait_for(lambda: 'Iter(train)' in log.read_text(), process, log)
        workers = children(process.pid)
        assert len(workers) == 2
        process.send_signal(end)
        process.wait(30)
        wait_for_end(workers)
    finally:
        process.kill()
