"""How far a loop is, to people at a terminal; nothing in a log."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

T = TypeVar('T')


def terminal_bar(shown: bool = True, transient: bool = False) -> Progress:
    """A bar on the error output, if that is a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        disable=not (shown and console.is_terminal),
    )


def track(items: Sequence[T], what: str) -> Iterator[T]:
    """Go through ``items`` with a bar."""
    with terminal_bar() as progress:
        yield from progress.track(items, description=what)
