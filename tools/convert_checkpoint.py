"""Convert a published checkpoint to one that our models load.

python tools/convert_checkpoint.py deit_small.pth deit_s.pth --from deit
python tools/convert_checkpoint.py published:deit-small deit_s.pth
"""

import argparse

import _checkout  # noqa: F401

from clustr_mm.checkpoints import published
from clustr_mm.checkpoints.layouts import (
    LAYOUTS,
    convert_file,
    write_converted,
)
from clustr_mm.errors import reported


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('src', help='the published file, or published:NAME')
    parser.add_argument('dst', help='where the converted one goes')
    parser.add_argument(
        '--from',
        dest='source',
        choices=list(LAYOUTS),
        help='what the published file is; needed for a file',
    )
    args = parser.parse_args()
    if published.is_name(args.src):
        if args.source:
            parser.error(f'{args.src} tells what it is: leave out --from')
    elif not args.source:
        parser.error('the following arguments are required: --from')
    return args


def main() -> None:
    args = parse_args()
    with reported():
        if published.is_name(args.src):
            state_dict = published.load(args.src)['state_dict']
            source = published.find(args.src).layout
            write_converted(state_dict, args.dst, source)
        else:
            state_dict = convert_file(args.src, args.dst, args.source)
    print(f'{len(state_dict)} tensors written to {args.dst}')


if __name__ == '__main__':
    main()
