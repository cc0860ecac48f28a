"""Prepare the pictures of the study: CIFAR-10, garments on photographs, tree
crowns.

python tools/prepare_study.py DOWNLOADS --out data/study
"""

import argparse
from pathlib import Path

import _checkout  # noqa: F401

from clustr_mm.arguments import number
from clustr_mm.errors import reported
from clustr_mm.study.prepare import DATA, prepare


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        'source', type=Path, help='folder of the files that were downloaded'
    )
    parser.add_argument('--out', type=Path, default=Path('data/study'))
    parser.add_argument(
        '--only', nargs='+', choices=list(DATA), default=list(DATA)
    )
    parser.add_argument(
        '--num-train',
        type=number(int, 1),
        default=4000,
        help='scenes of garments to train on',
    )
    parser.add_argument('--num-test', type=number(int, 1), default=500)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    for name in args.only:
        print(f'\n{name}')
        prepare(
            name,
            args.source,
            args.out / name,
            args.num_train,
            args.num_test,
        )


if __name__ == '__main__':
    with reported():
        main()
