"""Run the study's claims, time their arms, and report what came out.

python tools/study.py plan
python tools/study.py run --hours 2 --only pooling
python tools/study.py time --only pooling
python tools/study.py report
"""

import argparse
import time
from pathlib import Path

import _checkout  # noqa: F401

from clustr_mm.analysis.speed import warn_if_busy
from clustr_mm.arguments import number
from clustr_mm.errors import reported
from clustr_mm.study import report, timing
from clustr_mm.study.cells import OutOfTime, Study
from clustr_mm.study.claims import CLAIMS, expected_hours
from clustr_mm.study.timing import TIMES

ROOT = Path(__file__).resolve().parent.parent


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest='command', required=True)
    commands.add_parser('plan', help='list the claims and what they take')
    run = commands.add_parser('run', help='run the cells that have no result')
    run.add_argument(
        '--hours',
        type=number(float),
        default=float('inf'),
        help='stop after so many; what was begun goes on the next time',
    )
    run.add_argument(
        '--seeds',
        type=number(int),
        nargs='+',
        help='in place of those that the claims name',
    )
    run.add_argument(
        '--quick',
        action='store_true',
        help='two epochs of few pictures: a look, not an answer',
    )
    run.add_argument('--data', type=Path, default=Path('data/study'))
    run.add_argument('--work-dir', type=Path, default=Path('work_dirs/study'))
    clock = commands.add_parser(
        'time', help='compare the arms of claims, on a machine that idles'
    )
    for command in (run, clock):
        command.add_argument(
            '--only', nargs='+', choices=list(CLAIMS), default=list(CLAIMS)
        )
    page = commands.add_parser('report', help='write the page')
    for command in (run, clock, page):
        command.add_argument(
            '--results', type=Path, default=ROOT / 'docs/study'
        )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if args.command == 'plan':
        for name, hours in expected_hours().items():
            arms, seeds = len(CLAIMS[name].arms), len(CLAIMS[name].seeds)
            print(
                f'{name:15} {arms:3} arms {seeds:2} seeds {hours:5.1f} hours '
                f'  {CLAIMS[name].title}'
            )
        return
    if args.command == 'report':
        page = args.results.parent / 'study.md'
        report.write(args.results, page)
        print(page)
        return
    if args.command == 'time':
        warn_if_busy()
        timing.measure(args.only, ROOT / 'configs', args.results / TIMES)
        return
    # Apart, so that no answer goes on from a look.
    work = args.work_dir / 'quick' if args.quick else args.work_dir
    study = Study(
        tools=ROOT / 'tools',
        configs=ROOT / 'configs',
        data=args.data,
        work=work,
        results=work / 'results' if args.quick else args.results,
        quick=args.quick,
        deadline=time.monotonic() + 3600 * args.hours,
    )
    try:
        study.run(args.only, args.seeds)
    except OutOfTime:
        print('\nThe time is over. The same command goes on from here.')


if __name__ == '__main__':
    with reported():
        main()
