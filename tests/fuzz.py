"""Run the property tests with ever new examples until the time is over.

A failure ends it with status 1, and the test's report has the shrunk example
and how to replay it. Hypothesis also keeps that in `.hypothesis/` and tries it
first in the next run. Ctrl-C ends it at any time, with status 130.
"""

import argparse
import random
import re
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent / 'test_properties'


class Tally:
    """Counts examples, and stops the session when the time is over."""

    def __init__(self, minutes: float):
        self.start = time.monotonic()
        self.seconds = 60 * minutes
        self.examples = 0
        self.failed = False

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def is_over(self) -> bool:
        return self.elapsed >= self.seconds

    def pytest_runtest_teardown(self, item):
        statistics = getattr(item, 'hypothesis_statistics', '')
        passing = re.findall(r'(\d+) passing', statistics)
        self.examples += sum(map(int, passing))
        if self.is_over:
            item.session.shouldstop = 'the time is over'

    def pytest_runtest_logreport(self, report):
        self.failed |= report.failed

    def __str__(self):
        minutes, seconds = divmod(int(self.elapsed), 60)
        return f'{self.examples:,} examples in {minutes} min {seconds} s'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--minutes', type=float, default=60)
    parser.add_argument(
        '--seed', type=int, help='of the first round, to repeat it'
    )
    parser.add_argument(
        'pytest_args',
        nargs='*',
        metavar='ARG',
        help='further arguments of pytest, after --, such as -k TEXT',
    )
    args = parser.parse_args()
    tally = Tally(args.minutes)
    while not tally.is_over:
        seed = random.getrandbits(32) if args.seed is None else args.seed
        args.seed = None
        print(f'\n{tally}; seed {seed}', flush=True)
        status = pytest.main(
            [
                *(str(TESTS), '-v', '-x', '--no-header'),
                *('--override-ini', 'addopts=--import-mode=importlib'),
                *('--rootdir', str(TESTS.parents[1])),
                *('--hypothesis-profile=fuzz', f'--hypothesis-seed={seed}'),
                *args.pytest_args,
            ],
            plugins=[tally],
        )
        # Whoever interrupted it, a failure is one.
        interrupted = status == pytest.ExitCode.INTERRUPTED
        if tally.failed or (status and not interrupted):
            print(f'\n{tally}, then the above with --seed {seed}')
            return 1
        if interrupted and not tally.is_over:
            print(f'\n{tally}, then interrupted: every property held')
            return 130
    print(f'\n{tally}: every property held')
    return 0


if __name__ == '__main__':
    sys.exit(main())
