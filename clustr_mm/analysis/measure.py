"""Compare candidates in a setting, and report it as a table."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from clustr_mm.errors import UserError
from clustr_mm.progress import terminal_bar
from clustr_mm.tokens import processor
from .speed import Call, Comparison, allocated_memory, compare
from .table import format_table

_MB = 2**20


@dataclass(frozen=True)
class Setting:
    """How to measure.

    Attributes:
        device: 'cpu', or 'cuda'.
        dtype: 'float32'; models run in others by autocast.
        compiled: Whether models also run compiled.
        training: Whether there are gradients.
        rounds: How many times each candidate is timed at most.
        budget: Seconds after which a comparison is ended.
        show_progress: Whether to show a bar on the error output.
    """

    device: str = 'cpu'
    dtype: str = 'float32'
    compiled: bool = False
    training: bool = False
    rounds: int = 20
    budget: float = 60.0
    show_progress: bool = False

    def __post_init__(self):
        x = torch.ones(1, 1, device=self.device)
        try:
            with self.running():
                torch.mm(x, x)
        except RuntimeError as error:
            raise UserError(
                f'this torch does not compute in {self.dtype} on '
                f'{self.device}: {error}'
            ) from error

    def picture(self, *shape: int) -> Tensor:
        """Noise of all sizes, [B, C, H, W], about as smooth as photographs:
        a clustering settles in white noise at once."""
        picture = torch.randn(shape, device=self.device)
        size = shape[2:]
        for octave in range(1, min(size).bit_length()):
            coarse = [max(1, side >> octave) for side in size]
            noise = torch.randn(*shape[:2], *coarse, device=self.device)
            picture += F.interpolate(noise, size, mode='bilinear')
        return picture / picture.std()

    @property
    def processor(self) -> str:
        """What is measured."""
        if self.device.startswith('cuda'):
            return torch.cuda.get_device_name(self.device)
        return f'{processor.name()}, {torch.get_num_threads()} threads'

    @contextmanager
    def running(self) -> Iterator[None]:
        """As a user predicts or trains, maybe in autocast."""
        low = self.dtype != 'float32'
        dtype = getattr(torch, self.dtype) if low else None
        with (
            torch.set_grad_enabled(self.training),
            torch.autocast(self.device, dtype, enabled=low),
        ):
            yield


@dataclass(frozen=True)
class Candidate:
    """Who is compared.

    Attributes:
        call: What to time.
        macs: Its multiply-accumulates.
        rival: Another candidate that it is also compared to.
    """

    call: Call
    macs: int | None = None
    rival: str | None = None


@dataclass
class Result:
    """A table, and the same numbers for a program."""

    title: str
    head: list[str]
    rows: list[list]
    data: list[dict]
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False

    def as_text(self) -> str:
        table = format_table(self.head, self.rows)
        return '\n'.join([self.title, '', table, *self.notes])

    def as_dict(self) -> dict:
        return dict(title=self.title, rows=self.data, notes=self.notes)


def measure(
    title: str,
    candidates: dict[str, Candidate],
    setting: Setting,
    batch: int = 1,
) -> Result:
    """Compare candidates with the first of them."""
    calls = {
        name: prepared(setting, candidate.call)
        for name, candidate in candidates.items()
    }
    with progress_bar(setting, title) as on_round:
        comparison = compare(
            calls,
            rounds=setting.rounds,
            budget=setting.budget,
            on_round=on_round,
        )
    base = candidates[comparison.baseline]
    data = []
    for name, candidate in candidates.items():
        found = dict(name=name, **_times(comparison, name, batch))
        if candidate.macs and base.macs:
            found.update(macs=candidate.macs)
            found.update(macs_ratio=base.macs / candidate.macs)
        if candidate.rival:
            ratio = comparison.speedup(name, over=candidate.rival)
            found.update(rival=candidate.rival, over_rival=ratio)
        if not comparison.interrupted:
            found['memory'] = allocated_memory(calls[name], setting.device)
        data.append(found)
    return _comparison_table(title, comparison, data, setting.processor)


def _times(comparison: Comparison, name: str, batch: int) -> dict:
    seconds = comparison.time(name)
    return dict(
        seconds=seconds,
        images_per_second=batch / seconds.median,
        speedup=comparison.speedup(name),
        rounds=comparison.num_rounds,
    )


def _comparison_table(
    title: str, comparison: Comparison, data: list[dict], processor: str
) -> Result:
    rows = [
        [
            found['name'],
            f'{1e3 * found["seconds"]:.4g}',
            f'{found["images_per_second"]:.3g}',
            f'{found["speedup"]:.2f}',
            _number(found, 'macs_ratio', '.2f'),
            _number(found, 'over_rival', '.2f'),
            _number(found, 'macs', '.3f', 1e-9),
            _number(found, 'memory', '.1f', 1 / _MB),
        ]
        for found in data
    ]
    head = ['', 'ms', '/s', 'x as fast', 'x by MACs', 'x its rival']
    head += ['GMACs', 'MB']
    # Columns that nobody fills.
    kept = [0] + [i for i in range(1, 8) if any(row[i] for row in rows)]
    rounds = f'{comparison.num_rounds} round'
    rounds += 's' if comparison.num_rounds > 1 else ''
    return Result(
        f'{title}; median (quartiles) of {rounds} on {processor}',
        [head[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        data,
        interrupted=comparison.interrupted,
    )


def _number(
    found: dict, key: str, spec: str, factor: float = 1.0
) -> str | None:
    value = found.get(key)
    return None if value is None else format(factor * value, spec)


def prepared(setting: Setting, call: Call) -> Call:
    """The call as it runs in this setting."""

    def run():
        with setting.running():
            return call()

    return run


@contextmanager
def progress_bar(
    setting: Setting, title: str
) -> Iterator[Callable[[int], None]]:
    """A bar for the rounds of a comparison; in a log only what is measured."""
    bar = terminal_bar(setting.show_progress, transient=True)
    if setting.show_progress and bar.disable:
        bar.console.print(f'{title} ...', soft_wrap=True)
    with bar as progress:
        task = progress.add_task(title, total=setting.rounds)
        yield lambda i: progress.update(task, completed=i + 1)
