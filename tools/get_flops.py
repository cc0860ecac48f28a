"""Print the parameters and multiply-accumulates of a config's model.

python tools/get_flops.py configs/clustr/upernet_clustr_s_ade20k.py
"""

import argparse
import json
import sys
from contextlib import redirect_stdout

import _checkout  # noqa: F401

from clustr_mm import config_files
from clustr_mm.analysis.cost import cost_as_dict, count_macs, format_cost
from clustr_mm.analysis.models import (
    build_model,
    example_inputs,
    read_config,
    usual_size,
)
from clustr_mm.arguments import number
from clustr_mm.errors import reported


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', help='of any of the toolboxes')
    parser.add_argument(
        '--shape',
        type=number(int, 1),
        nargs='+',
        metavar=('HEIGHT', 'WIDTH'),
        help='of the image; by default what the config is made for',
    )
    parser.add_argument('--json', action='store_true', help='print JSON')
    config_files.add_options(parser)
    args = parser.parse_args()
    if args.shape and len(args.shape) > 2:
        parser.error('--shape takes a height and a width')
    return args


def main():
    args = parse_args()
    # The toolboxes log to the standard output, which is for the result.
    with reported(), redirect_stdout(sys.stderr):
        cfg = read_config(args.config, args.cfg_options)
        shape = args.shape or usual_size(cfg)
        shape = (shape[0], shape[-1])
        inputs = example_inputs(cfg, 1, shape)
        cost = count_macs(build_model(cfg), **inputs, mode='tensor')
    if args.json:
        found = dict(config=args.config, shape=shape, **cost_as_dict(cost))
        print(json.dumps(found, indent=2))
    else:
        print(f'{args.config}, one image of {shape[0]} x {shape[1]}\n')
        print(format_cost(cost))


if __name__ == '__main__':
    main()
