"""Draw what a config's backbone does with the tokens of images.

python tools/visualize_tokens.py photos/ \
    configs/clustr/clustr_s_imagenet.py clustr_s.pth --out pictures
"""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

import _checkout  # noqa: F401
import torch

from clustr_mm import config_files, safe_loading
from clustr_mm.analysis.models import build_model, read_config
from clustr_mm.checkpoints import load_weights
from clustr_mm.errors import reported
from clustr_mm.visualization.gallery import (
    Gallery,
    find_images,
    seen_size,
)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('images', help='an image, or a folder of images')
    parser.add_argument('config', help='of any of the toolboxes')
    parser.add_argument(
        'checkpoint', nargs='?', help='weights; random ones without it'
    )
    parser.add_argument(
        '--out', required=True, help='folder for the pictures and index.html'
    )
    parser.add_argument(
        '--short-side',
        type=int,
        metavar='PIXELS',
        help='shorter side of the image that the backbone sees, 0 for as it '
        'is; by default its area is what the config is made for',
    )
    parser.add_argument(
        '--point',
        type=float,
        nargs=2,
        metavar=('X', 'Y'),
        help='place whose cluster is highlighted, from 0 0 (left, top) to '
        '1 1; by default near the middle, where clusters are large',
    )
    parser.add_argument(
        '--side',
        type=int,
        default=400,
        metavar='PIXELS',
        help='longer side of each picture on a sheet',
    )
    safe_loading.add_argument(parser)
    config_files.add_options(parser)
    args = parser.parse_args()
    if args.point and not all(0 <= place <= 1 for place in args.point):
        parser.error('--point takes two numbers from 0 to 1')
    if args.side < 1 or (args.short_side or 0) < 0:
        parser.error('--side and --short-side take numbers of pixels')
    return args


def main():
    args = parse_args()
    safe_loading.install(trusted=args.trust_checkpoint)
    paths = find_images(args.images)
    cfg = read_config(args.config, args.cfg_options)
    torch.manual_seed(0)
    with redirect_stdout(sys.stderr):
        model = build_model(cfg)
        if args.checkpoint:
            load_weights(model, args.checkpoint)
    weights = Path(args.checkpoint).name if args.checkpoint else 'random'
    gallery = Gallery(
        model,
        args.out,
        f'{Path(args.config).name}, {weights} weights',
        seen_size(cfg, model),
        args.short_side,
        side=args.side,
        point=args.point,
    )
    try:
        gallery.add_all(paths)
    except KeyboardInterrupt:
        print(f'\ninterrupted: {len(gallery.pictures)} images are drawn')
        sys.exit(130)
    finally:
        if gallery.pictures:
            print(gallery.out / 'index.html')


if __name__ == '__main__':
    with reported():
        main()
