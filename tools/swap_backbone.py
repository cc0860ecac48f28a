"""Write a config that is another one with one of our backbones.

python tools/swap_backbone.py \\
    mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py clustr_s --out my.py
"""

import argparse
from pathlib import Path

import _checkout  # noqa: F401

from clustr_mm.arguments import number
from clustr_mm.errors import reported
from clustr_mm.swap.swapping import presets, swap_backbone


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        'base', help="config file, or a toolbox's own as mmseg::folder/file.py"
    )
    parser.add_argument(
        'backbone',
        help=f'{", ".join(presets())}, or a config file whose backbone to '
        'take, which may be of your own',
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument('--out', type=Path, help='the file to write')
    where.add_argument(
        '--dry-run',
        action='store_true',
        help='say what would be changed, try it, and write nothing',
    )
    parser.add_argument(
        '--assume',
        metavar='OUTPUTS',
        help='what the old backbone hands out, if it cannot be run: channels '
        "and stride of each map, such as '256,4 512,8 1024,16 2048,32', or "
        'the length of its vector',
    )
    parser.add_argument(
        '--adamw',
        action='store_true',
        help='train by AdamW, without weight decay of norms and positions',
    )
    parser.add_argument(
        '--lr',
        type=number(float),
        default=1e-4,
        help='of AdamW (default: 1e-4)',
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    del args.dry_run  # there is no --out then
    notes = swap_backbone(**vars(args))
    print(f'\n{args.out or "Nothing was written, but could be:"}')
    for note in notes:
        print(f'  {note}')


if __name__ == '__main__':
    with reported():
        main()
