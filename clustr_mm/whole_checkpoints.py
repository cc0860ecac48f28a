"""Checkpoints that are whole or not there, whenever a run is interrupted.

MMEngine writes over what it replaces, and deletes the checkpoints that are
out of date before it writes the next. A run that is killed in between, or
whose disk is full, has then lost what it had.
"""

import inspect
import io
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook, checkpoint_hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from . import safe_loading
from .errors import UserError
from .random_states import RandomStatesHook
from .registry import HOOKS


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a file that appears under its name when it is complete."""
    path = Path(path)
    # The same name each time, so that what a killed run has left behind is
    # written over by the next.
    part = path.with_name(f'.{path.name}.part')
    try:
        with open(part, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if os.name == 'posix':  # the name outlives a power cut, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class WholeBackend(LocalBackend):
    """MMEngine's access to local files, with whole ones only."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        write_whole(filepath, obj)


@contextmanager
def _open_whole(path: str, mode: str) -> Iterator[io.StringIO]:
    text = io.StringIO()
    yield text
    write_whole(path, text.getvalue().encode())


class _RemoveLater(LocalBackend):
    """Takes note of what is to be removed."""

    def __init__(self):
        self.outdated = []

    def remove(self, filepath: str | Path) -> None:
        self.outdated.append((filepath, _version(filepath)))

    def remove_now(self) -> None:
        for path, version in self.outdated:
            # Not one that has been written anew under the same name.
            if _version(path) == version:
                os.remove(path)


def _version(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns


class WholeCheckpointHook(RandomStatesHook, CheckpointHook):
    """Deletes what is out of date once what replaces it is written.

    Saves the states of random numbers, too.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Which it takes for those of another function, called much later.
        unknown = (
            self.args.keys()
            - inspect.signature(Runner.save_checkpoint).parameters.keys()
        )
        if unknown:
            raise TypeError(
                f'CheckpointHook has no option {", ".join(sorted(unknown))}'
            )

    def _save_checkpoint(self, runner: Runner) -> None:
        self.note()
        super()._save_checkpoint(runner)

    def _save_checkpoint_with_step(self, *args, **kwargs) -> None:
        with self._removing_last():
            super()._save_checkpoint_with_step(*args, **kwargs)

    def _save_best_checkpoint(self, *args, **kwargs) -> None:
        with self._removing_last():
            super()._save_best_checkpoint(*args, **kwargs)

    @contextmanager
    def _removing_last(self) -> Iterator[None]:
        backend = self.file_backend
        if not isinstance(backend, LocalBackend):
            yield
            return
        self.file_backend = later = _RemoveLater()
        try:
            yield
        finally:
            self.file_backend = backend
        later.remove_now()


def install() -> None:
    """Have all runs of this process write whole checkpoints."""
    register_backend('local', WholeBackend, force=True, prefixes='')
    HOOKS.register_module(
        name='CheckpointHook', module=WholeCheckpointHook, force=True
    )
    # Where MMEngine's hook looks for the function that writes the name of
    # the last checkpoint.
    checkpoint_hook.open = _open_whole


def newest_whole(folder: str | Path) -> str | None:
    """The newest checkpoint in a folder that a run can go on from."""
    paths = Path(folder).glob('*.pth')
    for path in sorted(paths, key=lambda p: p.stat().st_mtime_ns)[::-1]:
        if path.name.startswith('best_'):  # without the optimizer
            continue
        try:
            checkpoint = safe_loading.load(path, map_location='cpu')
        except UserError as error:
            print_log(f'{error} Skipped.', level=logging.WARNING)
            continue
        if is_resumable(checkpoint):
            return str(path)
    return None


def is_resumable(checkpoint: Any) -> bool:
    """Whether there is what a run goes on from, besides weights."""
    return isinstance(checkpoint, dict) and {
        'meta',
        'message_hub',
        'state_dict',
    } <= set(checkpoint)
