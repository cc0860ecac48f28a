"""Divide a folder of images, one folder a class, for training and validation.

python tools/split_folder.py photos --val 0.2
"""

import argparse

import _checkout  # noqa: F401

from clustr_mm.arguments import number
from clustr_mm.errors import reported
from clustr_mm.shapes.folders import split_folder


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('folder', help='has a folder for each class')
    parser.add_argument(
        '--val',
        type=number(float),
        default=0.2,
        help='share of each class to validate on (default: 0.2)',
    )
    parser.add_argument('--seed', type=number(int), default=0)
    args = parser.parse_args()
    if args.val >= 1:
        parser.error('--val takes a share below 1')
    return args


def main() -> None:
    args = parse_args()
    counts = split_folder(**vars(args))
    for name, (num_train, num_val) in counts.items():
        print(f'{name}: {num_train} to train on, {num_val} to validate on')
    print(
        f'\n{args.folder}/train.txt and val.txt are written. For a config:\n'
        f'classes = {list(counts)}'
    )


if __name__ == '__main__':
    with reported():
        main()
