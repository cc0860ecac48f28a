"""Places for results, tried before the work rather than after it."""

import tempfile
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
