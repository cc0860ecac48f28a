"""Errors that the user can mend."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Whoever writes parts of a model themselves wants to see where they fail.
DEBUG = 'CLUSTR_MM_DEBUG'
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
        sys.exit(f'\nerror: {message.strip()}')


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
        raise UserError(
            f'{what} cannot be built as the config says: {summary(error)} '
            f'({place}:{last.lineno}). '
            + (advice or f'Mend the config; {DEBUG}=1 shows the traceback.')
        ) from error
