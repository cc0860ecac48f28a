"""Run a tool in several processes of this host, for dist_train.sh and
dist_test.sh:

    _processes.py PROCESSES TOOL [ARGS...]

The variables are those of `torchrun`, whose place this takes: processes find
each other at a store that the first one opens. When all was done, torch's
launchers, one a host, wait for each other's farewell, which may get lost for
five minutes; and an error they follow by some forty lines of their own.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

# Where a process leaves the message that shall be the run's last one; see
# `clustr_mm/errors.py`.
REPORT = 'CLUSTR_MM_REPORT'
POLL = 0.1  # seconds
# How long processes have to end by themselves after a signal, in seconds.
PATIENCE = 30


def start(processes: int, command: list[str], report: Path) -> list:
    """Start the processes, each in a session of its own.

    Else a terminal would send Ctrl-C to them, too, and the second one, which
    we hand on, ends them at once.
    """
    hosts = int(os.environ.get('NNODES', 1))
    first = int(os.environ.get('NODE_RANK', 0)) * processes
    shared = {
        'MASTER_ADDR': os.environ.get('MASTER_ADDR', '127.0.0.1'),
        'MASTER_PORT': os.environ.get('PORT', '29500'),
        'WORLD_SIZE': str(hosts * processes),
        'LOCAL_WORLD_SIZE': str(processes),
        REPORT: str(report),
    }
    if processes > 1:  # or each would take all cores
        shared['OMP_NUM_THREADS'] = os.environ.get('OMP_NUM_THREADS', '1')
    return [
        subprocess.Popen(
            command,
            env={
                **os.environ,
                **shared,
                'RANK': str(first + i),
                'LOCAL_RANK': str(i),
            },
            start_new_session=True,
        )
        for i in range(processes)
    ]


def wait(running: list, report: Path) -> tuple[int, str]:
    """Wait until all have ended, or the first by an error.

    Returns:
        tuple[int, str]: Its status, and what is left to say of it.
    """
    while not report.exists():
        statuses = [process.poll() for process in running]
        for process, status in zip(running, statuses):
            if status is not None and status < 0:
                name = signal.Signals(-status).name
                return 128 - status, (
                    f'\nerror: Signal {-status} ({name}) received by PID '
                    f'{process.pid}, one of the processes of this run. If '
                    'nobody sent it, look at whether memory has run out.'
                )
            if status:
                return status, ''
        if None not in statuses:
            return 0, ''
        time.sleep(POLL)
    status, _, message = report.read_text().partition('\n')
    return int(status), message


def stop(running: list) -> None:
    """End what still runs: it cannot go on, and what it would say of the loss
    hides the reason."""
    for process in running:
        # It may have ended, and no worker of a loader be left either.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> int:
    processes, tool, *args = sys.argv[1:]
    command = [sys.executable, '-u', str(Path(__file__).with_name(tool))]
    command += [*args, '--launcher', 'pytorch']
    with tempfile.TemporaryDirectory() as folder:
        report, running, came = Path(folder, 'report'), [], []

        def hand_on(number: int, frame):
            came.append(number)
            for process in running:
                process.send_signal(number)

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # by `nohup`
                signal.signal(number, hand_on)
        running += start(int(processes), command, report)
        try:
            status, message = wait(running, report)
            end = time.monotonic() + PATIENCE
            while came and time.monotonic() < end:
                if None not in [process.poll() for process in running]:
                    break
                time.sleep(POLL)
        finally:
            stop(running)
    if message:
        print(message, file=sys.stderr, flush=True)
    return status


if __name__ == '__main__':
    sys.exit(main())
