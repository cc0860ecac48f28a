"""Errors that the user can mend."""

import sys
from contextlib import contextmanager


class UserError(Exception):
    """Says what was wrong and what to do; needs no traceback."""


@contextmanager
def reported():
    """End the program with the message of a `UserError` and status 1."""
    try:
        yield
    except UserError as error:
        sys.exit(f'\nerror: {error}')
