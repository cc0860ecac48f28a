"""Checkpoints that are whole or not there, whenever a run is interrupted.

MMEngine writes over what it replaces, and deletes the checkpoints that are
out of date before it writes the next. A run that is killed in between, or
whose disk is full, has then lost what it had.
"""

import hashlib
import inspect
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner, save_checkpoint

from clustr_mm.arguments import unknown_option
from clustr_mm.outputs import write_atomically
from clustr_mm.registry import HOOKS
from . import safe_loading
from .random_states import RandomStatesHook

BACKEND = 'atomic'  # as MMEngine's `backend_args` name it


class AtomicBackend(LocalBackend):
    """MMEngine's access to local files, with complete ones only."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        Path(filepath).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(filepath, obj)


register_backend(BACKEND, AtomicBackend, force=True)


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


@HOOKS.register_module()
class AtomicCheckpointHook(RandomStatesHook, CheckpointHook):
    """MMEngine's, with checkpoints that are complete or not there.

    Deletes what is out of date once what replaces it is written, and saves
    the states of random numbers, too. What goes elsewhere than to local
    files is written as MMEngine does.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Which it takes for those of another function, called much later.
        unknown = (
            self.args.keys()
            - inspect.signature(Runner.save_checkpoint).parameters.keys()
        )
        if unknown:
            raise TypeError(unknown_option(CheckpointHook, min(unknown)))

    def before_train(self, runner: Runner) -> None:
        is_local = '://' not in str(self.out_dir or runner.work_dir)
        if is_local and not self.backend_args and not self.file_client_args:
            self.backend_args = dict(backend=BACKEND)
        super().before_train(runner)

    def _save_checkpoint(self, runner: Runner) -> None:
        self.note()
        super()._save_checkpoint(runner)

    def _save_checkpoint_with_step(
        self, runner: Runner, step: int, meta: dict
    ) -> None:
        with self._removing_last():
            self._remove_outdated(runner, step)
            name = self.filename_tmpl.format(step)
            self.last_ckpt = self.file_backend.join_path(self.out_dir, name)
            runner.message_hub.update_info('last_ckpt', self.last_ckpt)
            runner.save_checkpoint(
                self.out_dir,
                name,
                self.file_client_args,
                save_optimizer=self.save_optimizer,
                save_param_scheduler=self.save_param_scheduler,
                meta=meta,
                by_epoch=self.by_epoch,
                backend_args=self.backend_args,
                **self.args,
            )
            if is_main_process():
                last = Path(runner.work_dir, 'last_checkpoint')
                write_atomically(last, self.last_ckpt.encode())

    def _remove_outdated(self, runner: Runner, step: int) -> None:
        """Make room for one more of the checkpoints that are kept."""
        if self.max_keep_ckpts <= 0 or step in list(self.keep_ckpt_ids)[-1:]:
            return
        if len(self.keep_ckpt_ids) == self.max_keep_ckpts:
            name = self.filename_tmpl.format(self.keep_ckpt_ids.popleft())
            path = self.file_backend.join_path(self.out_dir, name)
            if is_main_process() and self.file_backend.isfile(path):
                self.file_backend.remove(path)
            elif is_main_process() and self.file_backend.isdir(path):
                self.file_backend.rmtree(path)  # one file a process
        self.keep_ckpt_ids.append(step)
        kept = list(self.keep_ckpt_ids)
        runner.message_hub.update_info('keep_ckpt_ids', kept)

    def _save_best_checkpoint(self, *args, **kwargs) -> None:
        with self._removing_last():
            super()._save_best_checkpoint(*args, **kwargs)

    @contextmanager
    def _removing_last(self) -> Iterator[None]:
        backend = self.file_backend
        if isinstance(backend, _RemoveLater) or not isinstance(
            backend, LocalBackend
        ):
            yield
            return
        self.file_backend = later = _RemoveLater()
        try:
            yield
        finally:
            self.file_backend = backend
        later.remove_now()

    def _publish_model(self, runner: Runner, ckpt_path: str) -> None:
        if not is_main_process():
            return
        checkpoint = safe_loading.load(ckpt_path, 'cpu')
        kept = {
            key: value
            for key, value in checkpoint.items()
            if key in self.published_keys
        }
        digest = hashlib.sha256(pickle.dumps(kept)).hexdigest()
        path = f'{os.path.splitext(ckpt_path)[0]}-{digest[:8]}.pth'
        save_checkpoint(kept, path, backend_args=self.backend_args)
        runner.logger.info(
            f'The checkpoint ({ckpt_path}) is published to {path}.'
        )
