"""How time and memory grow with an image's area and the number of tokens."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from matplotlib.figure import Figure

from clustr_mm.tokens.density_peaks import density_peaks
from .benchmarks import (
    DETECTION_PYRAMIDS,
    PVT,
    PYRAMIDS,
    SWIN,
    WINDOW,
    build_backbone,
)
from .measure import Result, Setting, prepared, progress_bar
from .references import textbook_density_peaks
from .speed import Call, allocated_memory, compare

SIZES = (224, 320, 448, 640, 896, 1280, 1792)
NUM_TOKENS = (784, 1568, 3136, 6272, 12544, 25088, 50176, 100352, 200704)
LINEAR = dict(
    type='ClusTR', arch='small', window=WINDOW, reuse=True, growth=0.0
)
MODELS = {
    **PYRAMIDS,
    **DETECTION_PYRAMIDS,
    'ClusTR-S, window, reuse, growth 0': LINEAR,
    'PVTv2-b2': PVT,
    'Swin-T': SWIN,
}
# Beyond, the textbook's matrices take gigabytes.
TEXTBOOK_TOKENS = 12544


def growth(
    setting: Setting,
    limit: float = 5.0,
    sizes: Sequence[int] = SIZES,
    numbers: Sequence[int] = NUM_TOKENS,
) -> Iterator[Result]:
    """Time and memory of backbones, and of clustering alone.

    Who takes more than ``limit`` seconds is measured no further.
    """
    models = {
        name: build_backbone(settings, setting)
        for name, settings in MODELS.items()
    }

    def predict(name: str, size: int) -> Call:
        img = setting.picture(1, 3, size, size)
        return partial(models[name], img)

    areas = {size: size * size for size in sizes}
    yield _grow('side of an image', areas, models, predict, setting, limit)

    def cluster(name: str, number: int) -> Call | None:
        x = torch.randn(1, number, 64, device=setting.device)
        counts = [math.ceil(number / r) for r in (64, 16)]
        if name == 'exact':
            return lambda: density_peaks(x, counts)
        if name == 'textbook':
            if number > TEXTBOOK_TOKENS:
                return None
            return lambda: textbook_density_peaks(x, counts)
        grid = _grid_of(number)
        return lambda: density_peaks(x, counts, grid=grid, window=WINDOW)

    names = ['textbook', 'exact', f'window {WINDOW}']
    tokens = {number: number for number in numbers}
    yield _grow('tokens', tokens, names, cluster, setting, limit)


def _grid_of(number: int) -> tuple[int, int]:
    """The grid of this many tokens that is most like a square."""
    side = math.isqrt(number)
    while number % side:
        side -= 1
    return side, number // side


def _grow(
    what: str,
    amounts: dict[int, int],
    names: Sequence[str],
    make: Callable[[str, int], Call | None],
    setting: Setting,
    limit: float,
) -> Result:
    """Measure candidates at growing values.

    Args:
        what (str): What grows.
        amounts (dict[int, int]): For each value what a linear cost would be
            in proportion to.
        names (Sequence[str]): The candidates.
        make (Callable): What a candidate has to do for a value, or None.
        setting (Setting): How to measure.
        limit (float): Seconds beyond which a candidate leaves.
    """
    data, left, interrupted = [], list(names), False
    for value, amount in amounts.items():
        calls = {name: make(name, value) for name in left}
        calls = {
            name: prepared(setting, call)
            for name, call in calls.items()
            if call is not None
        }
        if not calls or interrupted:
            break
        with progress_bar(setting, f'{what}: {value}') as on_round:
            comparison = compare(
                calls,
                rounds=setting.rounds,
                warmup=1,
                budget=setting.budget / len(amounts),
                on_round=on_round,
            )
        interrupted = comparison.interrupted
        for name, call in calls.items():
            seconds = comparison.time(name)
            found = dict(name=name, value=value, amount=amount)
            found.update(seconds=seconds, rounds=comparison.num_rounds)
            if not interrupted:
                found['memory'] = allocated_memory(call, setting.device)
            data.append(found)
        left = [n for n in calls if comparison.time(n).median < limit]
    cells = {(found['value'], found['name']): found for found in data}
    return Result(
        f'growth with {what}, {setting.dtype}: ms; ns for each pixel or '
        'token; MB',
        [what, *names],
        [
            [value, *(_cell(cells.get((value, name))) for name in names)]
            for value in amounts
            if any(found['value'] == value for found in data)
        ],
        data,
        interrupted=interrupted,
    )


def _cell(found: dict | None) -> str | None:
    if found is None:
        return None
    seconds = found['seconds'].median
    text = f'{1e3 * seconds:.4g}; {1e9 * seconds / found["amount"]:.3g}'
    if 'memory' in found:
        text += f'; {found["memory"] / 2**20:.0f}'
    return text


def plot_growth(results: Sequence[Result], path: str) -> None:
    """Draw time and memory, with a dashed line of linear growth."""
    figure = Figure(figsize=(11, 4.5 * len(results)), layout='constrained')
    grid = figure.subplots(len(results), 2, squeeze=False)
    for result, (time_axes, memory_axes) in zip(results, grid):
        what = result.head[0]
        label = 'pixels' if 'image' in what else what
        for name in result.head[1:]:
            found = [row for row in result.data if row['name'] == name]
            amounts = [row['amount'] for row in found]
            seconds = [row['seconds'] for row in found]
            time_axes.errorbar(
                amounts,
                [spread.median for spread in seconds],
                [
                    [spread.median - spread.low for spread in seconds],
                    [spread.high - spread.median for spread in seconds],
                ],
                marker='o',
                label=name,
            )
            memory_axes.plot(
                [row['amount'] for row in found if 'memory' in row],
                [row['memory'] / 2**20 for row in found if 'memory' in row],
                marker='o',
                label=name,
            )
        for axes, unit in (time_axes, 'seconds'), (memory_axes, 'MB'):
            axes.set(xscale='log', yscale='log', xlabel=label, ylabel=unit)
            axes.grid(alpha=0.3)
            _draw_linear(axes)
        time_axes.legend(fontsize='x-small')
    figure.savefig(path, dpi=120)


def _draw_linear(axes) -> None:
    """A line of slope 1 from the lowest point on, within the picture."""
    low, high = axes.get_xlim(), axes.get_ylim()
    start, end = low
    bottom = high[0]
    axes.plot(
        [start, end],
        [bottom, bottom * end / start],
        '--',
        color='gray',
        lw=1,
        label='linear',
    )
    axes.set(xlim=low, ylim=high)
