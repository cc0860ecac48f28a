"""What a run says when it is stopped from outside."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.dist import is_main_process

from clustr_mm.checkpoints.resuming import newest_resumable

# The statuses with which a shell reports these signals.
STATUS = {number: 128 + number for number in (signal.SIGINT, signal.SIGTERM)}


class _Stopped(KeyboardInterrupt):
    """As such it passes by whoever catches errors, and ends the workers of a
    loader, which get Ctrl-C too, without a word."""


@contextmanager
def report_interruption(folder: str | Path) -> Iterator[None]:
    """End with a paragraph on what is saved when Ctrl-C or SIGTERM come.

    Args:
        folder (str | Path): The checkpoints of the run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    came = []

    def stop(number: int, frame) -> None:
        came.append(number)
        # A second one ends at once, whatever the process is at.
        for other in before:
            signal.signal(other, signal.SIG_DFL)
        raise _Stopped

    # What `nohup` and the like have the process ignore, it goes on to ignore.
    before = {
        number: signal.signal(number, stop)
        for number in STATUS
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield
    # What is interrupted may turn it into an error of its own.
    except BaseException:
        if not came:
            raise
        if is_main_process():
            print(_paragraph(came[0], folder), file=sys.stderr, flush=True)
        sys.exit(STATUS[came[0]])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _paragraph(number: int, folder: str | Path) -> str:
    name = signal.Signals(number).name
    newest = newest_resumable(folder)
    if newest is None:
        return (
            f'\nstopped by {name}: no checkpoint was written to {folder} yet, '
            'so nothing is saved. The same command begins anew.'
        )
    return (
        f'\nstopped by {name}: what is saved is {newest}, and what came after '
        'it is lost. Go on from there by the same command with --resume.'
    )
