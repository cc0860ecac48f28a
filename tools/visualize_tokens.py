"""Draw what the backbones of configs do with the tokens of images.

python tools/visualize_tokens.py photos/ \
    configs/clustr/clustr_s_imagenet.py clustr_s.pth --out pictures

With several configs, one can see them disagree about each image.
"""

import argparse
import sys
from contextlib import redirect_stdout
from pathlib import Path

import _checkout  # noqa: F401
import torch

from clustr_mm import configs
from clustr_mm.analysis.models import build_model, read_config
from clustr_mm.arguments import number
from clustr_mm.checkpoints import replacements, safe_loading
from clustr_mm.checkpoints.load import load_weights
from clustr_mm.errors import UserError, reported
from clustr_mm.visualization.explorer import Subject
from clustr_mm.visualization.gallery import (
    Gallery,
    find_images,
    seen_size,
)

# How the files of configs end.
CONFIGS = ('.py', '.json', '.yaml', '.yml')


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('images', help='an image, or a folder of images')
    parser.add_argument(
        'models',
        nargs='+',
        metavar='CONFIG [CHECKPOINT]',
        help='configs of any of the toolboxes, each with its weights behind '
        'it; without them, they are random',
    )
    parser.add_argument(
        '--out', required=True, help='folder for the pictures and index.html'
    )
    parser.add_argument(
        '--short-side',
        type=number(int),
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
        type=number(int, 1),
        default=400,
        metavar='PIXELS',
        help='longer side of each picture on a sheet',
    )
    safe_loading.add_argument(parser)
    configs.add_options(parser)
    args = parser.parse_args()
    if args.point and not all(0 <= place <= 1 for place in args.point):
        place = ' '.join(f'{value:g}' for value in args.point)
        parser.error(f'--point takes two numbers from 0 to 1, not {place}')
    return args


def pair(words: list[str]) -> list[tuple[str, str | None]]:
    """Configs and their checkpoints; what follows a config may be its own."""
    pairs = []
    for word in words:
        is_config = Path(word).suffix in CONFIGS
        if pairs and not is_config and pairs[-1][1] is None:
            pairs[-1] = (pairs[-1][0], word)
        elif pairs and not is_config:
            raise UserError(
                f'{word} follows a checkpoint, but is no config: those end '
                f'with {", ".join(CONFIGS)}'
            )
        else:
            pairs.append((word, None))
    return pairs


def load(config: str, checkpoint: str | None, options: dict) -> Subject:
    """A config's model, with its weights."""
    cfg = read_config(config, options)
    torch.manual_seed(0)
    with redirect_stdout(sys.stderr):
        model = build_model(cfg)
        if checkpoint:
            load_weights(model, checkpoint)
    weights = Path(checkpoint).name if checkpoint else 'random'
    return Subject(model, Path(config).name, weights, seen_size(cfg, model))


def main() -> None:
    args = parse_args()
    replacements.install(trusted=args.trust_checkpoint)
    paths = find_images(args.images)
    gallery = Gallery(
        [load(*found, args.cfg_options) for found in pair(args.models)],
        args.out,
        args.short_side,
        side=args.side,
        point=args.point,
    )
    try:
        gallery.add_all(paths)
    except KeyboardInterrupt:
        print(f'\ninterrupted: {len(gallery.scripts)} images are drawn')
        sys.exit(130)
    finally:
        if gallery.scripts:
            print(gallery.out / 'index.html')


if __name__ == '__main__':
    with reported():
        main()
