"""The tests of numbers, under each instruction set that the machine has."""

import sys

import pytest
import torch

from tests.runs import ROOT, run

# What lowers torch's own kernels, oneDNN and MKL, by torch's name for it.
LOWERED = {
    'DEFAULT': ('default', 'SSE41', 'SSE4_2'),
    'AVX2': ('avx2', 'AVX2', 'AVX2'),
    'AVX512': ('avx512', 'AVX512_CORE', 'AVX512'),
}
NUMERIC = ['test_tokens', 'test_layers', 'test_backbones', 'test_properties']


def environment(name):
    torchs, onednns, mkls = LOWERED[name]
    return dict(
        ATEN_CPU_CAPABILITY=torchs,
        ONEDNN_MAX_CPU_ISA=onednns,
        MKL_ENABLE_INSTRUCTIONS=mkls,
        OMP_NUM_THREADS='1',
    )


def instruction_sets():
    """Those up to the machine's, of which others than x86 have none."""
    names = list(LOWERED)
    found = torch.backends.cpu.get_cpu_capability()
    return names[: names.index(found) + 1] if found in names else names[:1]


@pytest.mark.slow
@pytest.mark.parametrize('name', instruction_sets())
def test_numbers(name):
    asks = 'import torch; print(torch.backends.cpu.get_cpu_capability())'
    out = run(sys.executable, '-c', asks, cwd=ROOT, **environment(name))
    assert out.split()[-1] == name
    run(
        *(sys.executable, '-m', 'pytest', '-q', '-m', 'not slow'),
        *('-p', 'no:cacheprovider'),
        *(f'tests/{folder}' for folder in NUMERIC),
        cwd=ROOT,
        timeout=3600,
        **environment(name),
    )
