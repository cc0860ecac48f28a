"""A cell of the study: an arm with a seed, trained, tested, written down.

The tools that users have do the work, in processes of their own. A cell that
was interrupted goes on from its newest checkpoint.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config

from clustr_mm import configs
from clustr_mm.analysis.cost import count_macs
from clustr_mm.errors import UserError
from clustr_mm.tokens import processor
from .claims import ARMS, CLAIMS, Arm
from .timing import backbone_call

# What `quick` leaves of a training: a look, not an answer.
QUICK = {
    'train_cfg.max_epochs': 2,
    'param_scheduler.1.T_max': 2,
    'train_dataloader.dataset.indices': 10000,
    'val_dataloader.dataset.indices': 2000,
    'test_dataloader.dataset.indices': 2000,
}
# Until a tool that was asked to stop has stopped.
_FAREWELL = 60


class OutOfTime(Exception):
    """The hours that were given are over; nothing is lost."""


class Busy(Exception):
    """Another run is at this cell."""


@dataclass(frozen=True)
class Study:
    """Where a study runs.

    Attributes:
        tools, configs: folders of this project.
        data: what `prepare` has left.
        work: for logs and checkpoints.
        results: for one file a cell.
        quick: whether to train for a small part of what an answer takes.
        deadline: when to stop, in seconds of `time.monotonic`.
    """

    tools: Path
    configs: Path
    data: Path
    work: Path
    results: Path
    quick: bool = False
    deadline: float = float('inf')

    def result(self, arm: str, seed: int) -> Path:
        return self.results / arm / f'{seed}.json'

    def _work(self, arm: str, seed: int) -> Path:
        return self.work / arm / str(seed)

    def _left(self) -> float:
        """Seconds until the deadline."""
        return max(0.0, self.deadline - time.monotonic())

    def run(
        self, claims: Iterable[str], seeds: Sequence[int] | None = None
    ) -> None:
        """Run all cells of these claims that have no result yet.

        Seed by seed, so that what there is after any time is comparable.
        Several runs in the same folders share the work.
        """
        cells = dict.fromkeys(
            (arm, seed)
            for claim in claims
            for seed in seeds or CLAIMS[claim].seeds
            for arm in CLAIMS[claim].arms
        )
        # What no other run is at comes first.
        for wait in (False, True):
            for arm, seed in cells:
                with suppress(Busy):
                    self.cell(arm, seed, wait)

    def cell(self, name: str, seed: int, wait: bool = True) -> None:
        """Run a cell and write its result, if it is not there."""
        path = self.result(name, seed)
        if path.is_file():
            return
        with self._alone(name, seed, wait):
            if not path.is_file():  # which another run may have written
                self._run(name, seed, wait)

    def _run(self, name: str, seed: int, wait: bool) -> None:
        arm, began = ARMS[name], time.monotonic()
        cfg, options = self._config(arm)
        work = self._work(name, seed)
        self._train(name, seed, wait)
        metric = cfg.default_hooks.checkpoint.save_best
        value = None
        if metric is not None:
            weights = self._checkpoint(name, seed)
            value = self._test(cfg, work, options, weights, metric)
        result = dict(
            arm=name,
            seed=seed,
            config=f'configs/study/{arm.config}',
            options=options,
            starts=dict(arm.starts),
            metric=metric,
            value=value,
            history=_history(work, metric),
            macs=count_macs(*backbone_call(cfg, batch=1)).macs,
            hours=round((time.monotonic() - began) / 3600, 3),
            commit=_commit(self.configs),
            processor=processor.name(),
            torch=torch.__version__,
        )
        path = self.result(name, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + '\n')
        took = f'{result["hours"]:.2f} h'
        print(f'{name}, seed {seed}: {metric} {value}, {took}', flush=True)

    @contextmanager
    def _alone(self, name: str, seed: int, wait: bool) -> Iterator[None]:
        """Keep other runs away from a cell.

        Raises:
            Busy: if another run is at it, and ``wait`` is not set.
        """
        path = self._work(name, seed).with_suffix('.lock')
        path.parent.mkdir(parents=True, exist_ok=True)
        left = self._left() if wait else 0
        try:
            with FileLock(path, timeout=-1 if left == float('inf') else left):
                yield
        except Timeout as error:
            raise OutOfTime if wait else Busy from error

    def _config(self, arm: Arm) -> tuple[Config, dict]:
        """A cell's config, and the options that it was read with."""
        options = dict(arm.options)
        cfg = configs.read(self.configs / 'study' / arm.config, options)
        if self.quick:
            options |= _quick(cfg)
            configs.override(cfg, options)
        return cfg, options

    def _train(self, name: str, seed: int, wait: bool) -> None:
        """Train a cell, after those that it starts from, if need be.

        Of those only the results may be there, if another machine has left
        them: then their weights are trained again.
        """
        arm, work = ARMS[name], self._work(name, seed)
        for start in arm.starts.values():
            self.cell(start, seed, wait)
            with self._alone(start, seed, wait):
                self._train(start, seed, wait)
        if not arm.trained:
            return
        cfg, options = self._config(arm)
        last = work / 'last_checkpoint'
        done = work / f'epoch_{cfg.train_cfg.max_epochs}.pth'
        if last.is_file() and done.is_file():
            return
        print(f'{name}, seed {seed}: training', flush=True)
        options |= {
            key: str(self._checkpoint(start, seed))
            for key, start in arm.starts.items()
        }
        options |= {
            'randomness.seed': seed,
            'default_hooks.checkpoint.max_keep_ckpts': 1,
            # The last one is tested: the best one would be chosen by what
            # it is tested on.
            'default_hooks.checkpoint.save_best': None,
            'default_hooks.checkpoint.interval': 1,
        }
        self._tool('train.py', cfg, work, ['--resume'], options)

    def _test(
        self,
        cfg: Config,
        work: Path,
        options: dict,
        weights: Path,
        metric: str,
    ) -> float:
        work = work / 'test'
        self._tool('test.py', cfg, work, [str(weights)], options)
        newest = max(work.glob('*/*.json'), key=lambda p: p.stat().st_mtime)
        value = json.loads(newest.read_text())[metric] * _points(metric)
        return round(value, 3)

    def _tool(
        self,
        name: str,
        cfg: Config,
        work: Path,
        arguments: list[str],
        options: dict,
    ):
        """Run a tool; its output goes to a file."""
        work.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(self.tools / name), cfg.filename]
        command += [*arguments, '--work-dir', str(work), '--data-root']
        command += [str(self.data / Path(cfg.data_root).name)]
        if options:
            command += ['--cfg-options', *configs.as_arguments(options)]
        log = work / name.replace('.py', '.log')
        status = self._launch(command, log)
        if status:
            last = log.read_text().strip().splitlines()[-1:]
            raise UserError(
                f'{name} ended with status {status} ({"".join(last)}): see '
                f'{log}'
            )

    def _launch(self, command: list[str], log: Path) -> int:
        """Run a command until the time is over; its status."""
        with log.open('a') as stream, _ended_by_sigterm():
            process = subprocess.Popen(
                command, stdout=stream, stderr=subprocess.STDOUT
            )
            left = self._left()
            try:
                return process.wait(None if left == float('inf') else left)
            except subprocess.TimeoutExpired as error:
                raise OutOfTime from error
            finally:
                if process.poll() is None:
                    process.terminate()
                    try:
                        process.wait(_FAREWELL)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()

    def _checkpoint(self, arm: str, seed: int) -> Path:
        """The weights of a cell, or those that it tested."""
        if not ARMS[arm].trained:
            (start,) = ARMS[arm].starts.values()
            return self._checkpoint(start, seed)
        return Path((self._work(arm, seed) / 'last_checkpoint').read_text())


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let what is asked to end see to what it has begun."""

    def leave(number: int, frame) -> NoReturn:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _quick(cfg: Config) -> dict:
    """What of `QUICK` there is in a config: some are never tested."""
    return {
        key: value
        for key, value in QUICK.items()
        if cfg.get(key.partition('.')[0]) is not None
    }


def _history(work: Path, metric: str) -> list[list[float]]:
    """The metric over training, of all pieces that a run came in."""
    found = {}
    for path in sorted(work.glob('*/vis_data/scalars.json')):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if metric in record:
                step = record['step']
                found[step] = record[metric] * _points(metric)
    return [[step, round(value, 3)] for step, value in sorted(found.items())]


def _points(metric: str) -> int:
    """By which COCO's metrics and the others' differ."""
    return 100 if metric.startswith('coco/') else 1


def _commit(folder: Path) -> str:
    process = subprocess.run(
        ['git', 'describe', '--always', '--dirty'],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return process.stdout.strip()
