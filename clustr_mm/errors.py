"""Errors that the user can mend."""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from .arguments import refused_option

# Whoever writes parts of a model themselves wants to see where they fail.
DEBUG = 'CLUSTR_MM_DEBUG'
# Names the file from which `tools/_processes.py` takes a run's last words.
REPORT = 'CLUSTR_MM_REPORT'
# What a constructor raises for arguments that it cannot work with.
BAD_ARGUMENTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


class UserError(Exception):
    """Says what was wrong and what to do; needs no traceback."""


def missing(kind: str, path: str | Path) -> UserError:
    """What to say of a file that shall be read and is none."""
    if Path(path).is_dir():
        return UserError(f'{path} is a folder: give a {kind}')
    return UserError(f'there is no {kind} {path}: give the path of one')


@contextmanager
def reported() -> Iterator[None]:
    """End the program with the message of a `UserError` and status 1."""
    try:
        yield
    except UserError as error:
        if os.environ.get(DEBUG):
            raise
        # A worker of a data loader hands on its traceback in the message.
        message = str(error).rpartition('UserError: ')[2]
        _end(f'\nerror: {message.strip()}')


class ArgumentParser(argparse.ArgumentParser):
    """One of several processes says what is wrong with all arguments."""

    def error(self, message: str) -> NoReturn:
        if REPORT not in os.environ:
            super().error(message)
        _end(f'{self.format_usage()}{self.prog}: error: {message}', 2)


def _end(message: str, status: int = 1) -> NoReturn:
    """End with a message; one of several processes lets the launcher say it.

    To end before the others have been ended would make them fail as well, of
    lost connections, and say so.
    """
    path = os.environ.get(REPORT)
    if path is not None:
        with suppress(OSError):  # no launcher is left
            draft = Path(f'{path}.{os.getpid()}')
            draft.write_text(f'{status}\n{message}')
            draft.rename(path)
            time.sleep(30)
    with suppress(OSError):  # nobody reads it
        sys.stdout.flush()  # what was wrong comes last
    sys.exit(message)


def summary(error: BaseException, longest: int = 400) -> str:
    """Kind and words of somebody else's error, in a line."""
    words = ' '.join(str(error).split())
    if len(words) > longest:
        words = f'{words[:longest]} ...'
    return f'{type(error).__name__}: {words}' if words else str(type(error))


@contextmanager
def building(what: str, advice: str = '') -> Iterator[None]:
    """Tell what of a config could not be built, why, and which line says so.

    For what calls constructors with the arguments of a config, and nothing
    else: an error in there is one of the config.
    """
    try:
        yield
    except UserError:
        raise
    except BAD_ARGUMENTS as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = '/'.join(Path(last.filename).parts[-3:])
        reason = refused_option(error) or summary(error)
        raise UserError(
            f'{what} cannot be built as the config says: {reason} '
            f'({place}:{last.lineno}). '
            + (advice or f'Mend the config; {DEBUG}=1 shows the traceback.')
        ) from error
