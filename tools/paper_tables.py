"""Count what the papers print, and compare.

python tools/paper_tables.py --only HVT
python tools/paper_tables.py --write-docs

Ends with status 1 if a number is further from the paper's than its rounding,
or than what is known about how it was counted, explains.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from fnmatch import fnmatchcase
from pathlib import Path

import _checkout  # noqa: F401

import clustr_mm.backbones  # noqa: F401
from clustr_mm.analysis.measure import Setting, progress_bar
from clustr_mm.analysis.paper import (
    Measured,
    Row,
    as_dict,
    format_rows,
    measure,
    model_zoo,
    rows,
)
from clustr_mm.errors import UserError, reported

DOCS = Path(__file__).resolve().parents[1] / 'docs'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('--json', action='store_true', help='print JSON')
    parser.add_argument(
        '--only',
        default='',
        metavar='PATTERN',
        help='rows whose "paper: model" contains this, in either case; *, ? '
        'and [] have the meaning that they have in a shell',
    )
    parser.add_argument(
        '--write-docs',
        action='store_true',
        help='write docs/model_zoo.md, which takes all rows',
    )
    args = parser.parse_args()
    if args.only and args.write_docs:
        parser.error('--write-docs takes all rows: leave out --only')
    return args


def chosen_rows(pattern: str) -> list[Row]:
    found = [
        row
        for row in rows()
        if fnmatchcase(
            f'{row.paper}: {row.name}'.lower(), f'*{pattern.lower()}*'
        )
    ]
    if not found:
        raise UserError(
            f'--only {pattern!r} fits no row of the papers: give a part of a '
            'name such as "HVT: HVT-S-1" or "EViT: deit-s/0.7"'
        )
    return found


def measure_all(chosen: Sequence[Row]) -> Iterator[tuple[Row, Measured]]:
    setting = Setting(rounds=len(chosen), show_progress=True)
    with progress_bar(setting, 'counting') as on_row:
        for i, row in enumerate(chosen):
            yield row, measure(row)
            on_row(i)


def main() -> None:
    args = parse_args()
    if args.write_docs and not DOCS.is_dir():
        raise UserError(f'--write-docs needs a checkout: there is no {DOCS}')
    measured, interrupted = [], False
    # The toolboxes log to the standard output, which is for the tables.
    with redirect_stdout(sys.stderr):
        chosen = chosen_rows(args.only)
        try:
            for pair in measure_all(chosen):
                measured.append(pair)
        except KeyboardInterrupt:
            interrupted = True
    if args.json:
        print(json.dumps([as_dict(*pair) for pair in measured], indent=2))
    else:
        print(format_rows(measured))
    if interrupted:
        print(
            f'interrupted: these are {len(measured)} of {len(chosen)} rows',
            file=sys.stderr,
        )
        sys.exit(130)
    if args.write_docs:
        (DOCS / 'model_zoo.md').write_text(model_zoo(measured))
    off = [row for row, found in measured if not row.agrees(found)]
    print(
        f'{len(measured) - len(off)} of {len(measured)} rows agree',
        file=sys.stderr,
    )
    sys.exit(bool(off))


if __name__ == '__main__':
    with reported():
        main()
