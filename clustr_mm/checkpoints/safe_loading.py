"""Checkpoints opened without running what is in them.

A checkpoint is a pickle, and a pickle may call any function while it is
opened. MMEngine tries a safe way first but goes on in the unsafe one where
that fails, and its safe way lets a file call ``getattr``, from which one gets
to everything else. `load` knows what a training run writes, and refuses the
rest: whatever of ours reads a file calls it.
"""

import argparse
import builtins
import collections
import os
import pickle
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from clustr_mm.errors import UserError, missing

# Not what `clustr_mm.checkpoints.replacements` may put in its place.
_torch_load = torch.load
# Whether the user has said so for all files of this process.
_trusts_all = False


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
            # What a script was called with, which DeiT's saves.
            (argparse, 'Namespace'),
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
WITH_STATE = (
    argparse.Namespace,
    collections.OrderedDict,
    HistoryBuffer,
    np.dtype,
    np.ndarray,
)


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


def _is_script(file: str | os.PathLike | BinaryIO) -> bool:
    """Whether it is a TorchScript archive, which ``torch.load`` also takes.

    That is a program. Looked at by torch's own reader: another one might see
    other names in the same bytes.
    """
    if isinstance(file, (str, os.PathLike)):
        with open(file, 'rb') as opened:
            return _is_script(opened)
    start = file.tell()
    is_zip = file.read(4) == b'PK\x03\x04'
    file.seek(start)
    if not is_zip:
        return False
    names = torch._C.PyTorchFileReader(file).get_all_records()
    file.seek(start)
    return 'constants.pkl' in names


def load(
    file: str | os.PathLike | BinaryIO,
    map_location: Any = None,
    *,
    trusted: bool | None = None,
    **kwargs,
) -> Any:
    """As ``torch.load``, for files of which nobody knows who wrote them.

    Args:
        file (str | Path | BinaryIO): The checkpoint.
        map_location: As of ``torch.load``.
        trusted (bool, optional): Open it whatever it runs; by default what
            `trust_all` was told.

    Raises:
        UnsafeCheckpointError: If the file is more than data.
        UserError: If it is no checkpoint, or only a part of one.
    """
    if trusted is None:
        trusted = _trusts_all
    is_path = isinstance(file, (str, os.PathLike))
    name = (
        os.fspath(file) if is_path else getattr(file, 'name', 'the checkpoint')
    )
    kwargs.update(map_location=map_location, weights_only=False)
    try:
        if not trusted:
            kwargs.update(pickle_module=_PICKLE)
            if _is_script(file):
                raise UnsafeCheckpointError('TorchScript')
        checkpoint = _torch_load(file, **kwargs)
    except (FileNotFoundError, IsADirectoryError) as error:
        raise missing('checkpoint', name) from error
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
    """Add the argument for :func:`trust_all`."""
    parser.add_argument(
        '--trust-checkpoint',
        action='store_true',
        help='open checkpoints even if that runs what is in them',
    )


def trust_all(trusted: bool) -> None:
    """Have `load` open what a user knows the origin of."""
    global _trusts_all
    _trusts_all = trusted
