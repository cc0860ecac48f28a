"""Train and test every main config on generated data, in little.

python tools/smoke.py --only mask_rcnn

Everything goes through tools/train.py and tools/test.py. A config passes if
its loss falls and its metric comes out as a number. All of them take about an
hour on two cores.
"""

import argparse
import sys
from pathlib import Path

import _checkout  # noqa: F401

from clustr_mm.errors import reported
from clustr_mm.runs.smoke import Outcome, main_configs, try_config

TOOLS = Path(__file__).resolve().parent


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        '--only',
        default='*',
        metavar='PATTERN',
        help='configs whose path contains this; *, ? and [] have the meaning '
        'that they have in a shell',
    )
    parser.add_argument(
        '--out',
        default='work_dirs/smoke',
        type=Path,
        help='folder of the data and the logs',
    )
    return parser.parse_args()


def print_row(outcome: Outcome) -> None:
    print(
        f'{outcome.name:<45} {outcome.first_loss:>9.4g} '
        f'{outcome.last_loss:>9.4g} {outcome.metric:>9.4g} '
        f'{outcome.seconds:>5.0f} s  {outcome.error or "ok"}',
        flush=True,
    )


def main() -> None:
    args = parse_args()
    configs = main_configs(TOOLS.parent / 'configs', args.only)
    outcomes = []
    for path in configs:
        outcomes.append(try_config(path, TOOLS, args.out))
        print_row(outcomes[-1])
    print(f'\n{"config":<45} {"loss":>9} {"-> loss":>9} {"metric":>9}')
    for outcome in outcomes:
        print_row(outcome)
    failed = [outcome for outcome in outcomes if outcome.error]
    print(f'{len(outcomes) - len(failed)} of {len(outcomes)} train')
    sys.exit(bool(failed))


if __name__ == '__main__':
    with reported():
        main()
