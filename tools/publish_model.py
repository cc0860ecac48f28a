"""Write the weights of a trained model alone, to give on.

python tools/publish_model.py work_dirs/evit_s_k07_imagenet evit_s_k07.pth \\
    --config configs/evit/evit_s_k07_imagenet.py

Averaged weights, where there are any. No optimizer, no paths, nothing that
runs when it is opened. The file's name gets the beginning of its SHA-256, and
what a metafile would say of it is printed.
"""

import argparse

import _checkout  # noqa: F401
import yaml

from clustr_mm.checkpoints.publishing import Published, publish
from clustr_mm.errors import reported


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'src', help="a checkpoint, or a run's folder: its best one, or last"
    )
    parser.add_argument('dst', help='NAME.pth, written as NAME-XXXXXXXX.pth')
    parser.add_argument(
        '--config', default='CONFIG', help='what it was trained with'
    )
    return parser.parse_args()


def entry(written: Published, config: str) -> dict:
    """What a metafile says of the model."""
    found = dict(
        Name=written.path.stem.rpartition('-')[0],
        Config=config,
        Metadata=dict(Parameters=written.num_parameters),
    )
    if written.metrics:
        found['Results'] = [
            dict(Task='TASK', Dataset='DATASET', Metrics=written.metrics)
        ]
    return dict(found, Weights=f'https://.../{written.path.name}')


def main() -> None:
    args = parse_args()
    with reported():
        written = publish(args.src, args.dst)
    print(f'{written.path}\n')
    found = entry(written, args.config)
    print(yaml.safe_dump([found], sort_keys=False), end='')


if __name__ == '__main__':
    main()
