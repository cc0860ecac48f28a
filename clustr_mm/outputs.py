"""Places for results, tried before the work rather than after it, and files
that are whole or not there.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import UserError


def make_folder(path: str | Path) -> Path:
    """Make a folder that files can be written to."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UserError(
            f'cannot write to the folder {path} ({error.strerror}): give '
            'another one'
        ) from error
    return path


def check_file(path: str | Path) -> Path:
    """Make sure that a file can be written; an old one stays as it is."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f'{path} is a folder: give the name of a file')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(
            f'cannot write {path} ({error.strerror}): give a file in another '
            'folder'
        ) from error
    return path


@contextmanager
def complete_file(
    path: str | Path, part: Path | None = None, durable: bool = True
) -> Iterator[Path]:
    """A file to write, which takes the place of ``path`` when it is complete.

    Whenever the program is interrupted, ``path`` is what it was or what it
    shall be.

    Args:
        path (str | Path): The file.
        part (Path, optional): What is written, in the same folder; by
            default a hidden file.
        durable (bool): Whether it outlives a power cut, too, for which one
            waits until it is on the disk.
    """
    path = Path(path)
    # The same name each time, so that what a killed run has left behind is
    # written over by the next.
    part = part or path.with_name(f'.{path.name}.part')
    try:
        yield part
        if durable:
            _to_disk(part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if durable and os.name == 'posix':  # and so does its name
        _to_disk(path.parent)


def write_atomically(path: str | Path, data: bytes) -> None:
    """Write a file that appears under its name when it is complete."""
    with complete_file(path) as part:
        part.write_bytes(data)


def _to_disk(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
