"""Time and memory of functions, compared so that the comparison holds.

A machine is faster now and slower then: other programs run, and it gets warm.
So candidates take turns, and ratios are taken within each round.
"""

import ctypes
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: list[float]) -> 'Spread':
        if len(numbers) == 1:
            return cls(*numbers * 3)
        low, median, high = statistics.quantiles(
            numbers, n=4, method='inclusive'
        )
        return cls(median, low, high)

    def __rmul__(self, factor: float) -> 'Spread':
        return Spread(
            factor * self.median, factor * self.low, factor * self.high
        )

    def __format__(self, spec: str) -> str:
        return f'{self.median:{spec}} ({self.low:{spec}}-{self.high:{spec}})'


@dataclass
class Comparison:
    """Seconds that each candidate took in each round."""

    baseline: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    interrupted: bool = False  # by the user, after at least one round

    @property
    def num_rounds(self) -> int:
        return len(self.seconds[self.baseline])

    def time(self, name: str) -> Spread:
        return Spread.of(self.seconds[name])

    def speedup(self, name: str, over: str | None = None) -> Spread:
        """How many times as fast as the baseline, within rounds."""
        slow, fast = self.seconds[over or self.baseline], self.seconds[name]
        return Spread.of([s / f for s, f in zip(slow, fast)])


def compare(
    candidates: dict[str, Call],
    baseline: str | None = None,
    rounds: int = 20,
    warmup: int = 2,
    budget: float | None = None,
    on_round: Callable[[int], object] | None = None,
) -> Comparison:
    """Time candidates in turns.

    Args:
        candidates (dict[str, Callable]): What to call.
        baseline (str, optional): What the others are compared to; the first
            by default.
        rounds (int): How many times each is timed.
        warmup (int): How many times each is called before.
        budget (float, optional): Seconds after which no further round is
            started, though at least one is finished.
        on_round (Callable, optional): Called after each round.

    Returns:
        Comparison: What was measured, maybe until the user interrupted it.
    """
    comparison = Comparison(baseline or next(iter(candidates)))
    comparison.seconds = {name: [] for name in candidates}
    started = time.perf_counter()
    for _ in range(warmup):
        for call in candidates.values():
            call()
            synchronize()
        if budget and time.perf_counter() - started > budget / 2:
            break
    try:
        for i in range(rounds):
            took = {}
            # To and fro, so that nobody always follows the same neighbour.
            names = list(candidates)[:: -1 if i % 2 else 1]
            for name in names:
                took[name] = seconds_of(candidates[name])
            for name, seconds in took.items():
                comparison.seconds[name].append(seconds)
            if on_round is not None:
                on_round(i)
            if budget and time.perf_counter() - started > budget:
                break
    except KeyboardInterrupt:
        if not comparison.num_rounds:
            raise
        comparison.interrupted = True
    return comparison


def warn_if_busy() -> None:
    """Say so where other programs run."""
    load = os.getloadavg()[0]
    if load > 0.5:
        print(
            f'Other programs are running (load {load:.1f}): what follows '
            'is less sure, and unfair to what runs in many small steps.',
            file=sys.stderr,
        )


def seconds_of(call: Call) -> float:
    """Time one call."""
    synchronize()
    started = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - started


def synchronize() -> None:
    """Wait for what a GPU was told to do."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def time_share(
    call: Call, modules: Iterable[nn.Module], rounds: int = 5
) -> Spread:
    """Share of a call's time that is spent in modules that it runs.

    None of them may be a part of another.
    """
    started = inside = 0.0

    def start(module, args):
        nonlocal started
        synchronize()
        started = time.perf_counter()

    def stop(module, args, output):
        nonlocal inside
        synchronize()
        inside += time.perf_counter() - started

    shares = []
    with ExitStack() as hooks:
        for module in modules:
            hooks.enter_context(module.register_forward_pre_hook(start))
            hooks.enter_context(module.register_forward_hook(stop))
        for _ in range(rounds):
            inside = 0.0
            total = seconds_of(call)
            shares.append(inside / total)
    return Spread.of(shares)


def allocated_memory(call: Call, device: str = 'cpu') -> int:
    """Bytes that a call's tensors take at most, beyond what was there.

    On a CPU this is what PyTorch's allocator hands out, also inside of its
    operators, without deducting what a call frees of memory that was there.
    Scratch memory of MKL and oneDNN is not among it, nor what the C library
    keeps between the tensors: :func:`resident_memory` sees all.
    """
    if torch.device(device).type == 'cuda':
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with (
        _quiet(),
        profile(
            activities=[ProfilerActivity.CPU], profile_memory=True
        ) as profiler,
    ):
        call()
    events = [
        event
        for event in profiler.profiler.kineto_results.events()
        if event.name() == '[memory]'
    ]
    events.sort(key=_start)
    now = peak = 0
    for event in events:
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def _start(event) -> int:
    # Microseconds until PyTorch 2.3.
    return event.start_ns() if hasattr(event, 'start_ns') else event.start_us()


@contextmanager
def _quiet():
    """Drop what the profiler says of a missing GPU and of its habits."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, 'w') as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@dataclass(frozen=True)
class Resident:
    """Bytes of memory that are the process's own in the machine's view."""

    extra: int  # at most during a call, beyond what was there
    peak: int  # at most, with all that was there


def resident_memory(call: Call) -> Resident | None:
    """What the operating system sees of a call; None where it cannot tell."""
    status, refs = Path('/proc/self/status'), Path('/proc/self/clear_refs')
    try:
        # Hand back what is free, so that reusing it shows as well, and let
        # the peak start from here.
        ctypes.CDLL(None).malloc_trim(0)
        refs.write_text('5')
    except (OSError, AttributeError):
        return None

    def read(key: str) -> int:
        lines = status.read_text().splitlines()
        line = next(line for line in lines if line.startswith(key))
        return int(line.split()[1]) * 1024

    before = read('VmRSS')
    call()
    peak = read('VmHWM')
    return Resident(peak - before, peak)
