"""Checkpoints opened without running what is in them.

A checkpoint is a pickle, and a pickle may call any function while it is
opened. MMEngine tries a safe way first but goes on in the unsafe one where
that fails, and its safe way lets a file call ``getattr``, from which one gets
to everything else. `install` replaces ``torch.load``, which all toolboxes
come to in the end, by one that knows what a training run writes and refuses
the rest.
"""

import argparse
import builtins
import collections
import functools
import os
import pickle
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from .errors import UserError

_torch_load = torch.load


class UnsafeCheckpointError(UserError):
    """Opening the file would take more than reading data."""


def _statistic(owner: type, name: str) -> Callable:
    """What MMEngine's checkpoints use ``getattr`` for, and nothing else."""
    if owner is HistoryBuffer and name in ('min', 'max', 'current', 'mean'):
        return getattr(owner, name)
    raise UnsafeCheckpointError(f'getattr of {name!r}')


def _latin1(text: str, encoding: str) -> bytes:
    """How the pickles of torch.save hold bytes."""
    if encoding != 'latin1':
        raise UnsafeCheckpointError(f'the codec {encoding!r}')
    return text.encode(encoding)


# What a file may call. As it chooses the arguments, each must be harmless
# whatever they are.
ALLOWED = {
    **{
        f'{module.__name__}.{name}': getattr(module, name)
        for module, names in (
            (builtins, 'bytearray complex frozenset range set slice'),
            (collections, 'Counter OrderedDict defaultdict'),
            (np, 'dtype ndarray'),
            (torch, 'Size Tensor device'),
            (torch._utils, '_rebuild_parameter _rebuild_tensor_v2'),
        )
        for name in names.split()
    },
    **{
        f'numpy.{core}.multiarray.{function.__name__}': function
        for core in ('core', '_core')  # before NumPy 2 and since
        for function in (
            np.zeros(0).__reduce__()[0],
            np.float64(0).__reduce__()[0],
        )
    },
    **{
        str(dtype): dtype
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype)
    },
    'mmengine.logging.history_buffer.HistoryBuffer': HistoryBuffer,
    'builtins.getattr': _statistic,
    '_codecs.encode': _latin1,
}
# Whose attributes a file may set. Not those of a class or a function.
WITH_STATE = (collections.OrderedDict, HistoryBuffer, np.dtype, np.ndarray)


# In Python rather than in C, whose BUILD cannot be restrained. The pickle of a
# checkpoint is small: the tensors lie outside of it.
class _Unpickler(pickle._Unpickler):
    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module: str, name: str) -> Any:
        full = f'{module}.{name}'.replace('__builtin__.', 'builtins.')
        if not full.replace('.', '_').isidentifier():
            raise pickle.UnpicklingError('these are not the bytes of a pickle')
        if full not in ALLOWED:
            raise UnsafeCheckpointError(full)
        return ALLOWED[full]

    def load_build(self) -> None:
        owner = self.stack[-2]
        if not isinstance(owner, WITH_STATE):
            raise UnsafeCheckpointError(f'the state of {owner!r}')
        super().load_build()

    dispatch[pickle.BUILD[0]] = load_build


def _load_pickle(file, **kwargs) -> Any:
    return _Unpickler(file, **kwargs).load()


_PICKLE = SimpleNamespace(
    __name__=__name__, Unpickler=_Unpickler, load=_load_pickle
)


@contextmanager
def _without_scripts():
    """A TorchScript archive, which ``torch.load`` also takes, is a program."""

    def refuse(*args, **kwargs):
        raise UnsafeCheckpointError('TorchScript')

    load, torch.jit.load = torch.jit.load, refuse
    try:
        yield
    finally:
        torch.jit.load = load


def load(file, map_location=None, *, trusted: bool = False, **kwargs) -> Any:
    """As ``torch.load``, for files of which nobody knows who wrote them.

    Args:
        file (str | Path | BinaryIO): The checkpoint.
        map_location: As of ``torch.load``.
        trusted (bool): Open it whatever it runs.

    Raises:
        UnsafeCheckpointError: If the file is more than data.
        UserError: If it is no checkpoint, or only a part of one.
    """
    if isinstance(file, (str, os.PathLike)):
        name = os.fspath(file)
    else:
        name = getattr(file, 'name', 'the checkpoint')
    kwargs.update(map_location=map_location, weights_only=False)
    try:
        if trusted:
            checkpoint = _torch_load(file, **kwargs)
        else:
            with _without_scripts():
                kwargs.update(pickle_module=_PICKLE)
                checkpoint = _torch_load(file, **kwargs)
    except FileNotFoundError as error:
        raise UserError(f'there is no checkpoint {name}') from error
    except UnsafeCheckpointError as error:
        raise UnsafeCheckpointError(
            f'{name} was not opened: it holds more than weights and the state '
            f'of a run ({error}), and could run any program. If you know who '
            'wrote it and trust them, say so with --trust-checkpoint.'
        ) from error
    # Bytes that are no checkpoint may raise anything.
    except Exception as error:
        reason = str(error).partition('\n')[0] or type(error).__name__
        raise UserError(
            f'{name} cannot be read: it is no checkpoint, or only a part of '
            f'one ({reason}). Copy or download it again, or take another.'
        ) from error
    return checkpoint if trusted else _without_program(checkpoint)


def _without_program(checkpoint: Any) -> Any:
    """Drop an old kind of config, which MMEngine would run to resume."""
    if isinstance(checkpoint, Mapping):
        meta = checkpoint.get('meta')
        if isinstance(meta, dict):
            meta.pop('config', None)
    return checkpoint


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument for :func:`install`."""
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='open checkpoints even if that runs what is in them',
    )


def install(trusted: bool = False) -> None:
    """Have all of this process open checkpoints by `load`."""

    @functools.wraps(_torch_load)
    def torch_load(file, map_location=None, pickle_module=None, **kwargs):
        kwargs.pop('weights_only', None)
        return load(file, map_location, trusted=trusted, **kwargs)

    torch.load = torch_load
