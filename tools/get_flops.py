"""Print the parameters and multiply-accumulates of a config's model.

python tools/get_flops.py configs/clustr/upernet_clustr_s_ade20k.py
"""

import argparse
import json
import sys
from contextlib import redirect_stdout

import _checkout  # noqa: F401

from clustr_mm import configs
from clustr_mm.analysis.cost import cost_as_dict, count_macs, format_cost
from clustr_mm.analysis.models import (
    build_model,
    example_inputs,
    read_config,
    usual_size,
)
from clustr_mm.arguments import add_shape
from clustr_mm.errors import reported


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', help='of any of the toolboxes')
    add_shape(parser)
    parser.add_argument('--json', action='store_true', help='print JSON')
    configs.add_options(parser)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    # The toolboxes log to the standard output, which is for the result.
    with reported(), redirect_stdout(sys.stderr):
        cfg = read_config(args.config, args.cfg_options)
        shape = args.shape or usual_size(cfg)
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
