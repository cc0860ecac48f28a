"""Search how many tokens each block should keep, and write it to a config.

python tools/search_keep.py configs/token_pooling/search_deit_s_imagenet.py \\
    --base configs/token_pooling/token_pooling_s_l3_imagenet.py --out FILE
"""

import argparse
import os
from pathlib import Path

import _checkout  # noqa: F401
from mmengine.config import Config
from mmengine.dist import is_main_process

from clustr_mm import configs, outputs
from clustr_mm.arguments import number
from clustr_mm.errors import ArgumentParser, UserError, reported
from clustr_mm.runs import launch
from clustr_mm.wrappers import unwrapped


def parse_args() -> argparse.Namespace:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('config', help='of the search, with a KeepSearch')
    parser.add_argument(
        '--base',
        required=True,
        help='config of the backbone that takes the list, which the written '
        'one builds on',
    )
    parser.add_argument('--out', required=True, help='the config to write')
    parser.add_argument(
        '--lambda',
        dest='sparsity_weight',
        type=number(float),
        help='weight of the sparsity, in place of what the config says: the '
        'larger, the fewer tokens are kept',
    )
    parser.add_argument(
        '--resume',
        nargs='?',
        const='auto',
        metavar='CHECKPOINT',
        help='go on from this checkpoint, or from the newest in the work dir',
    )
    launch.add_arguments(parser)
    return parser.parse_args()


def check(cfg: Config, base: str, out: str) -> None:
    """Raise an error before the search rather than after it."""
    if cfg.model.get('type') != 'KeepSearch':
        raise UserError(
            'the search needs a config whose model is a KeepSearch, such as '
            'configs/token_pooling/search_deit_s_imagenet.py'
        )
    kind = configs.read(base).model.get('backbone', {}).get('type')
    if kind != 'TokenPoolingDeiT':
        raise UserError(
            f'the list is for a TokenPoolingDeiT, but the backbone of {base} '
            f'is {kind}'
        )
    if Path(out).suffix != '.py' or Path(out).exists():
        raise UserError(f'--out must be a new .py file, but is {out}')
    outputs.check_file(out)


def write_config(out: str, base: str, keep: list[int], source: str) -> None:
    """Write a config that differs from ``base`` by the list."""
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    base = os.path.relpath(base, out.parent).replace(os.sep, '/')
    text = (
        f'# Found by tools/search_keep.py: {source}.\n'
        f'_base_ = {base!r}\n\n'
        f'model = dict(backbone=dict(keep={keep}))\n'
    )
    outputs.write_atomically(out, text.encode())


def main() -> None:
    args = parse_args()
    cfg = launch.load_config(args)
    check(cfg, args.base, args.out)
    if args.sparsity_weight is not None:
        cfg.model.sparsity_weight = args.sparsity_weight
    if args.resume:
        launch.resume(cfg, args.resume)
    model = launch.train(cfg)
    keep = unwrapped(model).found()
    if is_main_process():
        weight = cfg.model.sparsity_weight
        source = f'{Path(args.config).name}, lambda {weight:g}'
        write_config(args.out, args.base, keep, source)
        print(f'\nkeep = {keep}\nwritten to {args.out}')


if __name__ == '__main__':
    with reported():
        main()
