"""How far a loop is."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import rich.progress
from rich.console import Console

T = TypeVar('T')


def track(items: Sequence[T], what: str) -> Iterator[T]:
    """Go through ``items`` with a bar on the error output; none in a log."""
    console = Console(stderr=True)
    yield from rich.progress.track(
        items, what, console=console, disable=not console.is_terminal
    )
