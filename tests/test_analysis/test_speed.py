import time

import pytest
import torch

from clustr_mm.analysis import speed
from clustr_mm.analysis.speed import (
    Spread,
    allocated_memory,
    compare,
    resident_memory,
    time_share,
)

MB = 2**20


def test_ratio_of_sleepers():
    comparison = compare(
        dict(
            slow=lambda: time.sleep(0.04),
            fast=lambda: time.sleep(0.02),
        ),
        rounds=7,
        warmup=0,
    )
    assert comparison.num_rounds == 7
    assert comparison.time('slow').median == pytest.approx(0.04, rel=0.15)
    assert comparison.speedup('fast').median == pytest.approx(2, rel=0.15)
    assert comparison.speedup('slow').median == 1
    over = comparison.speedup('slow', over='fast')
    assert over.median == pytest.approx(0.5, rel=0.15)


def test_drift_cancels(monkeypatch):
    """The machine gets slower all the time; the ratio stays."""
    now, calls = [0.0], []
    monkeypatch.setattr(time, 'perf_counter', lambda: now[0])

    def work(factor):
        calls.append(factor)
        now[0] += factor * (1 + len(calls) // 2)

    comparison = compare(
        dict(one=lambda: work(1), two=lambda: work(2)), rounds=9, warmup=0
    )
    assert comparison.speedup('two').median == pytest.approx(0.5, rel=0.15)
    assert comparison.time('one').high > 1.3 * comparison.time('one').low


def test_takes_turns():
    calls = []
    comparison = compare(
        dict(a=lambda: calls.append('a'), b=lambda: calls.append('b')),
        baseline='b',
        rounds=3,
        warmup=2,
    )
    assert ''.join(calls) == 'abab' + 'ab' + 'ba' + 'ab'
    assert comparison.baseline == 'b'


def test_ends_in_time():
    rounds = []
    comparison = compare(
        dict(a=lambda: time.sleep(0.02)),
        rounds=1000,
        warmup=1,
        budget=0.1,
        on_round=rounds.append,
    )
    assert 1 <= comparison.num_rounds < 10
    assert rounds == list(range(comparison.num_rounds))
    call = dict(a=lambda: time.sleep(0.02))
    assert compare(call, warmup=0, budget=0.01).num_rounds == 1


def test_interruption_keeps_whole_rounds():
    calls = []

    def second():
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    comparison = compare(dict(a=lambda: None, b=second), warmup=0)
    assert comparison.interrupted
    assert comparison.num_rounds == 2
    assert len(comparison.seconds['a']) == len(comparison.seconds['b']) == 2
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        compare(dict(a=lambda: None, b=second), warmup=3)


def test_spread():
    assert Spread.of([5.0]) == Spread(5, 5, 5)
    assert Spread.of([1.0, 2, 3, 4, 5]) == Spread(3, 2, 4)
    assert f'{Spread(1.234, 1, 2):.1f}' == '1.2 (1.0-2.0)'


def test_time_share(monkeypatch):
    """By a clock that goes on where the test says."""
    now = 0.0
    monkeypatch.setattr(speed.time, 'perf_counter', lambda: now)

    class Nap(torch.nn.Module):
        def forward(self, seconds):
            nonlocal now
            now += seconds

    nap, rest = Nap(), Nap()
    share = time_share(lambda: rest(3.0), [nap], rounds=1)
    assert share.median == 0

    def quarter():
        nap(0.5)
        rest(3.0)
        nap(0.5)

    share = time_share(quarter, [nap], rounds=3)
    assert share == Spread.of([0.25])
    assert not nap._forward_hooks
    assert not nap._forward_pre_hooks


def both_at_once():
    a = torch.ones(5 * MB)  # 20 MB
    b = a + 1
    return a.sum() + b.sum()


def one_after_the_other():
    for _ in range(4):
        torch.ones(5 * MB)


def grows_and_shrinks():
    kept = torch.ones(5 * MB)
    for _ in range(3):
        torch.ones(10 * MB)
    return kept + 1


def inside_an_operator():
    torch.ones(5 * MB).sort()


@pytest.mark.parametrize(
    ('call', 'expected'),
    [
        (both_at_once, 40),
        (one_after_the_other, 20),
        (grows_and_shrinks, 60),
        (lambda: None, 0),
    ],
)
def test_known_allocations(call, expected):
    assert allocated_memory(call) == pytest.approx(expected * MB, rel=0.05)


def test_memory_inside_an_operator():
    """Sorting returns 60 MB beside its 20 MB input, and takes more."""
    assert allocated_memory(inside_an_operator) >= 80 * MB


# Of what is freed and taken again, the C library may make holes.
@pytest.mark.parametrize('call', [both_at_once, inside_an_operator])
def test_resident_memory(call):
    for _ in range(2):
        resident = resident_memory(call)
        if resident is None:
            pytest.skip('the operating system does not tell')
        assert resident.extra == pytest.approx(
            allocated_memory(call), rel=0.05
        )
        assert resident.peak > resident.extra


@pytest.mark.gpu
def test_memory_on_gpu():
    def call():
        a = torch.ones(5 * MB, device='cuda')
        return a + 1

    assert allocated_memory(call, 'cuda') == pytest.approx(40 * MB, rel=0.05)
