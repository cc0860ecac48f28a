"""Write a config's model to an ONNX file, and compare it with torch.

python tools/export_onnx.py configs/evit/evit_s_k07_imagenet.py \\
    evit_s_k07.pth evit_s_k07.onnx --dynamic-batch
"""

import argparse
from functools import partial

import _checkout  # noqa: F401

from clustr_mm import configs, outputs
from clustr_mm.analysis.models import read_config, usual_size
from clustr_mm.arguments import add_shape
from clustr_mm.checkpoints import replacements, safe_loading
from clustr_mm.errors import reported
from clustr_mm.export.onnx import (
    check_packages,
    describe_input,
    export_onnx,
    load_model,
)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument('config', help='of any of the toolboxes')
    parser.add_argument(
        'checkpoint',
        help="file of the weights; 'none' exports random ones",
    )
    parser.add_argument('out', help='file to write')
    safe_loading.add_argument(parser)
    add_shape(parser)
    parser.add_argument(
        '--dynamic-batch',
        action='store_true',
        help='take any number of images at a time instead of one',
    )
    parser.add_argument(
        '--features',
        action='store_true',
        help='export the backbone, with an output for each of its out_indices',
    )
    configs.add_options(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    check_packages()
    replacements.install(trusted=args.trust_checkpoint)
    cfg = read_config(args.config, args.cfg_options)
    shape = args.shape or usual_size(cfg)
    checkpoint = None if args.checkpoint == 'none' else args.checkpoint
    outputs.check_file(args.out)
    model = load_model(cfg, checkpoint, args.features)
    if checkpoint is None:
        print('The weights are random: there is no checkpoint.')
    notes = {'config': args.config, **describe_input(cfg)}
    found = export_onnx(
        model,
        args.out,
        shape,
        args.dynamic_batch,
        notes,
        partial(print, flush=True),
    )
    batch = 'N' if args.dynamic_batch else 1
    print(
        f'\n{args.out}\n'
        f'  images: [{batch}, 3, {shape[0]}, {shape[1]}], '
        f'{notes["channels"]}, mean {notes["mean"]}, std {notes["std"]}\n'
        f'  outputs: {", ".join(model.output_names)}\n'
        f'  differs from torch by at most {found.difference:.2g} on '
        f'{found.num_images} random images'
    )
    if found.num_undecided:
        print(
            f'  on {found.num_undecided} more a rounding error decides; there '
            'it answers as torch answers to an image changed by as little'
        )


if __name__ == '__main__':
    with reported():
        main()
