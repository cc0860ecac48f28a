"""Evaluate a model of any config of MMPretrain, MMSegmentation, MMDetection
or MMPose, with our backbones or without."""

import argparse

import _checkout  # noqa: F401

from clustr_mm.errors import ArgumentParser, reported
from clustr_mm.runs import launch


def parse_args() -> argparse.Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('config', help='config file')
    parser.add_argument('checkpoint', help='file or URL of the weights')
    parser.add_argument(
        '--out',
        help='write the predictions: a folder of label maps for '
        'segmentation, else a .pkl file',
    )
    parser.add_argument(
        '--show-dir', help='draw the predictions into this folder'
    )
    parser.add_argument(
        '--show', action='store_true', help='draw the predictions on screen'
    )
    parser.add_argument(
        '--tta', action='store_true', help='with test-time augmentation'
    )
    launch.add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    cfg = launch.load_config(args)
    launch.load_from(cfg, args.checkpoint)
    if args.out:
        launch.dump_predictions(cfg, args.out)
    if args.show or args.show_dir:
        launch.enable_visualization(cfg, args.show_dir, args.show)
    if args.tta:
        launch.enable_tta(cfg)
    launch.test(cfg)


if __name__ == '__main__':
    with reported():
        main()
