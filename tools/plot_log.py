"""Plot the curves of loss and metric of one or several trainings.

python tools/plot_log.py work_dirs/evit_shapes work_dirs/hvt_shapes
"""

import argparse
from pathlib import Path

import _checkout  # noqa: F401

from clustr_mm.analysis.curves import plot, read_run, usual_metric
from clustr_mm.errors import UserError, reported
from clustr_mm.outputs import check_file


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        'work_dirs', nargs='+', metavar='WORK_DIR', help='of a training'
    )
    parser.add_argument(
        '--keys',
        nargs='+',
        metavar='NAME',
        help='what to plot; by default the loss and the metric by which the '
        'first run keeps its best checkpoint',
    )
    parser.add_argument(
        '--out',
        default='curves.png',
        help='file of the picture; its ending says the format',
    )
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    out = check_file(args.out)
    runs = [read_run(work_dir) for work_dir in args.work_dirs]
    known = [{**run.training, **run.validation} for run in runs]
    there = list(dict.fromkeys(name for names in known for name in names))
    usual = ['loss', usual_metric(args.work_dirs[0], runs[0])]
    names = args.keys or [name for name in usual if name in there]
    for name in names:
        if name not in there:
            raise UserError(
                f'no run has logged {name}; there are {", ".join(there)}'
            )
    if not names:
        raise UserError(f'choose by --keys from {", ".join(there)}')
    try:
        plot(runs, names, Path(out))
    except ValueError as error:
        raise UserError(f'cannot draw {out}: {error}') from error
    for run, curves in zip(runs, known):
        for name in names:
            if name in curves:
                at, value = curves[name][-1]
                print(f'{run.name}: {name} {value:.4g} at iteration {at}')
    print(out)


if __name__ == '__main__':
    with reported():
        main()
