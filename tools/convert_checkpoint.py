"""Convert a published checkpoint to one that our models load.

python tools/convert_checkpoint.py deit_small.pth deit_s.pth --from deit
"""

import argparse

import _checkout  # noqa: F401

from clustr_mm.checkpoints import LAYOUTS, convert_file
from clustr_mm.errors import reported


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('src', help='the published file')
    parser.add_argument('dst', help='where the converted one goes')
    parser.add_argument(
        '--from',
        dest='source',
        required=True,
        choices=list(LAYOUTS),
        help='what the published file is',
    )
    return parser.parse_args()


def main():
    args = parse_args()
    with reported():
        state_dict = convert_file(args.src, args.dst, args.source)
    print(f'{len(state_dict)} tensors written to {args.dst}')


if __name__ == '__main__':
    main()
