"""Measure time and memory, always against a baseline in the same run.

python tools/benchmark.py clustering
python tools/benchmark.py backbones --batch 8 1
python tools/benchmark.py training --batch 8
python tools/benchmark.py precision --dtype bfloat16
python tools/benchmark.py config configs/clustr/retinanet_clustr_s_coco.py
python tools/benchmark.py growth --plot growth.png
python tools/benchmark.py dials photo.jpg --shape 800 1333
"""

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, is_dataclass

import _checkout  # noqa: F401
import torch

from clustr_mm import configs, outputs
from clustr_mm.analysis import benchmarks
from clustr_mm.analysis.clustering_options import (
    compare_options,
    read_images,
)
from clustr_mm.analysis.growth import growth, plot_growth
from clustr_mm.analysis.measure import Result, Setting
from clustr_mm.analysis.models import read_config, usual_size
from clustr_mm.analysis.speed import warn_if_busy
from clustr_mm.arguments import add_shape, number
from clustr_mm.errors import UserError, reported


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = parser.add_subparsers(dest='kind', required=True)
    common, square = _common_options(), _options()
    square.add_argument('--size', type=number(int, 1), default=224)
    trained = [common, _batch_option([8]), square]
    predicts = _batch_option([8, 1])
    predicts.add_argument(
        '--compile', action='store_true', help='also run compiled models'
    )
    kinds.add_parser(
        'clustering',
        parents=[common],
        help='our clustering and what the equations say word by word',
    )
    kinds.add_parser(
        'backbones',
        parents=[common, predicts, square],
        help="our backbones, the toolboxes' and straightforward versions",
    )
    kinds.add_parser(
        'training',
        parents=trained,
        help='forward, backward and step of all backbones',
    )
    kinds.add_parser(
        'precision',
        parents=trained,
        help='all backbones in bfloat16 or float16, against float32',
    )
    config = kinds.add_parser(
        'config', parents=[common, predicts], help="any config's model"
    )
    config.add_argument('config')
    add_shape(config)
    configs.add_options(config)
    _add_growth(kinds, common)
    options = kinds.add_parser(
        'dials',
        parents=[common],
        help="what ClusTR's dials do to its time and its labels",
    )
    options.add_argument('images', nargs='+', help='files')
    add_shape(options, default=(512, 512), help='that they are resized to')
    return parser.parse_args()


def _options() -> argparse.ArgumentParser:
    """Of which several kinds of comparisons are the children."""
    return argparse.ArgumentParser(add_help=False)


def _common_options() -> argparse.ArgumentParser:
    common = _options()
    common.add_argument('--device', default='cpu', help='cpu or cuda')
    common.add_argument(
        '--dtype',
        nargs='+',
        default=['float32'],
        choices=['float32', 'bfloat16', 'float16'],
    )
    common.add_argument('--threads', type=number(int, 1), help='of the CPU')
    common.add_argument(
        '--rounds',
        type=number(int, 1),
        default=20,
        help='of a comparison, at most',
    )
    common.add_argument(
        '--budget',
        type=number(float),
        default=60.0,
        metavar='SECONDS',
        help='after which a comparison is ended (default: 60)',
    )
    common.add_argument('--json', action='store_true', help='print JSON')
    return common


def _batch_option(usual: list[int]) -> argparse.ArgumentParser:
    batches = _options()
    batches.add_argument(
        '--batch', type=number(int, 1), nargs='+', default=usual
    )
    return batches


def _add_growth(
    kinds: argparse._SubParsersAction, common: argparse.ArgumentParser
) -> None:
    grow = kinds.add_parser(
        'growth',
        parents=[common],
        help='time and memory against area and number of tokens',
    )
    grow.add_argument('--plot', metavar='PNG', help='draw it to this file')
    grow.add_argument(
        '--limit',
        type=number(float),
        default=5.0,
        metavar='SECONDS',
        help='who takes longer is measured no further (default: 5)',
    )


def run(args: argparse.Namespace) -> Iterator[Result]:
    """Measure in each setting that was asked for."""
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device.partition(':')[0] not in ('cpu', 'cuda'):
        raise UserError(f'--device must be cpu or cuda, not {args.device}')
    is_gpu = args.device.startswith('cuda')
    if is_gpu and not torch.cuda.is_available():
        raise UserError('--device cuda: PyTorch finds no GPU here, use cpu')
    if getattr(args, 'plot', None):
        outputs.check_file(args.plot)
    warn_if_busy()
    dtypes = args.dtype
    if args.kind == 'precision' and dtypes == ['float32']:
        dtypes = ['bfloat16']
    for dtype in dtypes:
        setting = Setting(
            device=args.device,
            dtype=dtype,
            compiled=getattr(args, 'compile', False),
            rounds=args.rounds,
            budget=args.budget,
            show_progress=True,
        )
        if args.kind == 'clustering':
            yield from benchmarks.clustering(setting)
        elif args.kind == 'backbones':
            yield from benchmarks.backbones(setting, args.batch, args.size)
        elif args.kind in ('training', 'precision'):
            compare = getattr(benchmarks, args.kind)
            yield from compare(setting, args.batch, args.size)
        elif args.kind == 'config':
            cfg = read_config(args.config, args.cfg_options)
            size = args.shape or usual_size(cfg)
            yield from benchmarks.config(cfg, setting, args.batch, size)
        elif args.kind == 'growth':
            yield from growth(setting, args.limit)
        else:
            images = read_images(args.images, args.shape).to(args.device)
            yield from compare_options(images, setting)


def main() -> None:
    args = parse_args()
    results, interrupted = [], False
    # The toolboxes log to the standard output, which is for the results.
    with reported(), redirect_stdout(sys.stderr):
        try:
            for result in run(args):
                results.append(result)
                if not args.json:
                    print(f'{result.as_text()}\n', file=sys.__stdout__)
                    sys.__stdout__.flush()
                if result.interrupted:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            interrupted = True
            print('interrupted: these are the results so far', file=sys.stderr)
        if results and getattr(args, 'plot', None):
            plot_growth(results, args.plot)
    if args.json:
        found = dict(
            torch=torch.__version__,
            threads=torch.get_num_threads(),
            device=args.device,
            results=[result.as_dict() for result in results],
        )
        print(json.dumps(found, indent=2, default=_plain))
    sys.exit(130 if interrupted else 0)


def _plain(value):
    if is_dataclass(value):
        return asdict(value)
    raise TypeError(f'{value!r} has no place in JSON')


if __name__ == '__main__':
    main()
