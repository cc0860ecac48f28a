"""Curves of loss and metric, from what MMEngine leaves in a work dir."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mmengine.config import Config

from clustr_mm.errors import UserError

# What a validation leaves besides its metrics.
NO_METRICS = ('step', 'time', 'data_time', 'epoch', 'iter', 'lr', 'memory')


class Run(NamedTuple):
    """The curves of a run: points (iteration, value) by name."""

    name: str
    training: dict[str, list[tuple[int, float]]]
    validation: dict[str, list[tuple[int, float]]]


def read_run(work_dir: str) -> Run:
    """All curves of a work dir; what was resumed goes on in one curve."""
    root = Path(work_dir)
    if not root.is_dir():
        raise UserError(f'there is no work dir {work_dir}')
    # In the order of their times, which are their folders' names.
    files = sorted(root.glob('*/vis_data/scalars.json'))
    training, validation = {}, {}
    for file in files:
        iteration = 0
        for entry in _entries(file):
            iteration = entry.get('iter', iteration)
            is_training = 'iter' in entry
            curves = training if is_training else validation
            # MMEngine counts validations by epochs or by iterations.
            at = iteration or entry['step']
            for name, value in entry.items():
                if name not in NO_METRICS and _is_number(value):
                    curves.setdefault(name, {})[at] = value
    if not training and not validation:
        raise UserError(
            f'{work_dir} has no curves: no vis_data/scalars.json with '
            'numbers in a folder of it. MMEngine writes one with the '
            'visualizer of backend LocalVisBackend, at the first logged '
            'iteration.'
        )
    sort = {
        kind: {name: sorted(points.items()) for name, points in curves.items()}
        for kind, curves in (('t', training), ('v', validation))
    }
    return Run(root.resolve().name, sort['t'], sort['v'])


def _entries(file: Path) -> list[dict]:
    """The lines of a log, but a last one that an interruption cut off."""
    lines = file.read_text(encoding='utf-8').splitlines()
    entries = []
    for i, line in enumerate(lines):
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError as error:
            if i < len(lines) - 1:
                raise UserError(
                    f'line {i + 1} of {file} is no JSON: {error}'
                ) from error
    return [entry for entry in entries if isinstance(entry, dict)]


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def usual_metric(work_dir: str, run: Run) -> str | None:
    """The metric by which the config keeps its best checkpoint, or the
    first that was logged."""
    for path in Path(work_dir).glob('*.py'):
        cfg = Config.fromfile(path, import_custom_modules=False)
        hooks = cfg.get('default_hooks') or {}
        best = (hooks.get('checkpoint') or {}).get('save_best')
        if best in run.validation:
            return best
    return next(iter(run.validation), None)


def plot(runs: Sequence[Run], names: Sequence[str], out: Path) -> None:
    """A panel for each name, with a curve for each run that has it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(names), 4), layout='constrained')
    FigureCanvasAgg(figure)
    for i, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), i + 1)
        for run in runs:
            points = run.training.get(name) or run.validation.get(name) or []
            points = [(x, y) for x, y in points if math.isfinite(y)]
            marker = 'o' if name in run.validation else None
            axes.plot(
                *(zip(*points) if points else ((), ())),
                marker=marker,
                markersize=3,
                label=run.name,
            )
        axes.set(xlabel='iteration', title=name)
        axes.grid(alpha=0.3)
        if len(runs) > 1:
            axes.legend()
    figure.savefig(out, dpi=120)
