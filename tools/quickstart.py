"""Generate a data set, train a segmentor on it, evaluate it, draw it.

Takes a few minutes on two cores. `make quickstart` runs it.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import _checkout  # noqa: F401
from mmengine.config import Config

from clustr_mm.analysis.panels import draw_folder
from clustr_mm.arguments import number
from clustr_mm.errors import reported
from clustr_mm.shapes import make_shapes

TOOLS = Path(__file__).parent
CONFIG = TOOLS.parent / 'configs/quickstart/upernet_clustr_shapes.py'


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--out', default='work_dirs/quickstart', type=Path)
    parser.add_argument(
        '--num', type=number(int, 1), default=400, help='pictures'
    )
    return parser.parse_args()


def run(tool: str, *args) -> None:
    """Run another tool, in a process of its own as a user would."""
    command = [sys.executable, str(TOOLS / tool), *map(str, args)]
    print('\n$', ' '.join(['python', f'tools/{tool}', *map(str, args)]))
    status = subprocess.run(command, check=False).returncode
    if status:
        sys.exit(f'\nerror: tools/{tool} ended with status {status}')


def main() -> None:
    args = parse_args()
    data, work, maps = (args.out / n for n in ('data', 'work', 'maps'))
    print(f'Drawing {args.num} pictures to learn from')
    make_shapes('segmentation', data, num=args.num)
    options = ['--data-root', data, '--work-dir', work]
    run('train.py', CONFIG, *options)
    checkpoint = Path((work / 'last_checkpoint').read_text())
    run('test.py', CONFIG, checkpoint, '--out', maps, *options)

    metrics = json.loads(max(work.glob('*/*.json')).read_text())
    metainfo = Config.fromfile(CONFIG).metainfo
    pictures = args.out / 'pictures'
    draw_folder(data, maps, pictures, metainfo.palette)
    print(
        f'\nmIoU {metrics["mIoU"] / 100:.2f} on pictures it was not trained '
        f'on.\nPicture, truth and prediction side by side: '
        f'{pictures.absolute()}'
    )


if __name__ == '__main__':
    with reported():
        main()
