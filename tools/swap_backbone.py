"""Write a config that is another one with one of our backbones.

python tools/swap_backbone.py \\
    mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py clustr_s --out my.py
"""

import argparse
from pathlib import Path

import _checkout  # noqa: F401

from clustr_mm.arguments import number
from clustr_mm.errors import reported
from clustr_mm.swapping import BACKBONES, swap_backbone


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        'base', help="config file, or a toolbox's own as mmseg::folder/file.py"
    )
    parser.add_argument(
        'backbone',
        help=f'{", ".join(BACKBONES)}, or a config file whose backbone to '
        'take, which may be of your own',
    )
    parser.add_argument('--out', required=True, type=Path)
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


def main():
    args = parse_args()
    notes = swap_backbone(**vars(args))
    print(f'\n{args.out}')
    for note in notes:
        print(f'  {note}')


if __name__ == '__main__':
    with reported():
        main()
