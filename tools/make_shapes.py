"""Generate a data set of shapes in the layout of a real one.

python tools/make_shapes.py --task segmentation --out data/shapes
"""

import argparse

import _checkout  # noqa: F401

from clustr_mm.arguments import number
from clustr_mm.errors import reported
from clustr_mm.shapes import TASKS, make_shapes


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--task', required=True, choices=list(TASKS))
    parser.add_argument(
        '--out', required=True, help='folder: new, empty or made by this tool'
    )
    parser.add_argument(
        '--num',
        type=number(int, 1),
        default=200,
        help='pictures, both splits together',
    )
    parser.add_argument('--seed', type=number(int), default=0)
    parser.add_argument(
        '--size',
        type=number(int, 1),
        nargs='+',
        help='height and width, or one number for both',
    )
    parser.add_argument(
        '--val', type=number(float), default=0.2, help='part that is held out'
    )
    parser.add_argument(
        '--overwrite',
        action='store_true',
        help='replace a set that this tool made with other arguments',
    )
    return parser.parse_args()


def main() -> None:
    args = vars(parse_args())
    if args['size'] and len(args['size']) == 1:
        args['size'] = args['size'][0]
    with reported():
        print(f'\n{make_shapes(**args)}')


if __name__ == '__main__':
    main()
