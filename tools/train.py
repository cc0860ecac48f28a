"""Train a model of any config of MMPretrain, MMSegmentation, MMDetection or
MMPose, with our backbones or without."""

import argparse

import _checkout  # noqa: F401

from clustr_mm.errors import ArgumentParser, reported
from clustr_mm.runs import launch


def parse_args() -> argparse.Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from this checkpoint, or from the newest in the work dir',
    )
    parser.add_argument(
        '--amp', action='store_true', help='train in mixed precision'
    )
    parser.add_argument(
        '--auto-scale-lr',
        action='store_true',
        help='scale the learning rate by the real batch size over the one '
        'that the config was made for',
    )
    launch.add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    cfg = launch.load_config(args)
    if args.amp:
        launch.enable_amp(cfg)
    if args.auto_scale_lr:
        launch.enable_auto_scale_lr(cfg)
    if args.resume:
        launch.resume(cfg, args.resume)
    launch.train(cfg)


if __name__ == '__main__':
    with reported():
        main()
