"""Who computes a product: by the processor and the shapes, never by chance.

That both compute the same is in test_layers/test_linear.py.
"""

import platform
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from clustr_mm.layers.linear import Linear
from clustr_mm.tokens import processor, products
from clustr_mm.tokens.density_peaks import density_peaks

needs_both = pytest.mark.skipif(
    not torch.backends.mkl.is_available()
    or not torch.backends.mkldnn.is_available(),
    reason='this torch was built without MKL or oneDNN',
)
AMD, INTEL = 'AuthenticAMD', 'GenuineIntel'
ZEN_4, ZEN_5, XEON = (AMD, 25), (AMD, 26), (INTEL, 6)
CORE = """processor\t: {number}
vendor_id\t: {vendor}
cpu family\t: {family}
model name\t: {name}
flags\t\t: fpu vme

"""


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch):
    """No test knows the processor or the choice of another, or mine."""
    monkeypatch.delenv(products.VARIABLE, raising=False)
    yield
    processor._facts.cache_clear()
    products._library.cache_clear()


@pytest.fixture
def pretend(monkeypatch, tmp_path):
    """A function that takes this machine for another one."""

    def on(vendor, family, name='a processor'):
        cpuinfo = tmp_path / 'cpuinfo'
        facts = dict(vendor=vendor, family=family, name=name)
        cpuinfo.write_text(
            ''.join(CORE.format(number=i, **facts) for i in range(2))
        )
        monkeypatch.setattr(processor, '_CPUINFO', cpuinfo)
        processor._facts.cache_clear()
        products._library.cache_clear()

    return on


def by_onednn(call):
    """Whether oneDNN computes any product of a call."""
    functions = {'linear': products.linear}
    functions['batched_linear'] = products.batched_linear
    found = {
        name: mock.Mock(wraps=function) for name, function in functions.items()
    }
    with mock.patch.multiple(products, **found):
        call()
    return any(function.called for function in found.values())


@torch.no_grad()
def linear_by_onednn(num_rows, channels, num_columns):
    x = torch.randn(1, num_rows, channels)
    layer = Linear(channels, num_columns)
    return by_onednn(lambda: layer(x))


# Rows, channels and columns: of ViTs, and of a pyramid's first stages.
SHAPES = {
    (197, 384, 1152): False,
    (1576, 384, 1536): False,
    (6272, 128, 1024): False,
    (3136, 64, 64): False,
    (6272, 1024, 128): True,
    (25088, 64, 64): True,
}


@needs_both
@pytest.mark.parametrize(('shape', 'is_narrow'), SHAPES.items())
def test_linear_layers(shape, is_narrow, pretend):
    pretend(*ZEN_5)
    assert linear_by_onednn(*shape)
    for others in ZEN_4, XEON, ('HygonGenuine', 24), ('somebody else', 99):
        pretend(*others)
        assert linear_by_onednn(*shape) == is_narrow


@needs_both
@pytest.mark.parametrize('shape', SHAPES)
def test_training(shape, pretend):
    num_rows, channels, num_columns = shape
    layer = Linear(channels, num_columns)
    x = torch.randn(num_rows, channels)
    for maker, expected in (ZEN_5, True), (ZEN_4, False), (XEON, False):
        pretend(*maker)
        assert by_onednn(lambda: layer(x)) == expected


@needs_both
def test_distances(pretend):
    x = torch.randn(2, 100, 8)
    for maker, expected in (ZEN_5, True), (ZEN_4, False), (XEON, False):
        pretend(*maker)
        assert by_onednn(lambda: density_peaks(x, [9])) == expected


@needs_both
def test_who_asks_what_is_computed_is_told_of_a_linear_layer(pretend):
    pretend(*ZEN_5)
    layer, x = Linear(8, 6), torch.randn(5, 8)
    expected = layer(x)

    def transformed():
        torch.testing.assert_close(torch.func.vmap(layer)(x), expected)

    def counted():
        with FlopCounterMode(display=False) as counter:
            layer(x)
        assert counter.get_total_flops() == 2 * 5 * 8 * 6

    def traced():
        graph = torch.jit.trace(layer, x, check_trace=False).inlined_graph
        assert 'aten::linear' in str(graph)

    def in_mixed_precision():
        with torch.autocast('cpu', torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16

    def on_no_device():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert layer(mode.from_tensor(x)).shape == expected.shape

    assert by_onednn(lambda: layer(x))
    for call in transformed, counted, traced, in_mixed_precision, on_no_device:
        assert not by_onednn(call)


@needs_both
@pytest.mark.parametrize('maker', [ZEN_5, XEON])
def test_environment_overrules(maker, pretend, monkeypatch):
    for asked, expected in ('onednn', True), ('mkl', False):
        monkeypatch.setenv(products.VARIABLE, asked)
        pretend(*maker)
        assert {linear_by_onednn(*shape) for shape in SHAPES} == {expected}


@needs_both
def test_wrong_choice(pretend, monkeypatch):
    monkeypatch.setenv(products.VARIABLE, 'blas')
    pretend(*ZEN_5)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="mkl or onednn, but is 'blas'"),
    ):
        Linear(3, 4)(torch.randn(2, 3))


def test_name_of_this_processor():
    """Whichever it is; some have no name in this file."""
    cpuinfo = Path('/proc/cpuinfo')
    text = cpuinfo.read_text() if cpuinfo.exists() else ''
    names = re.findall(r'^model name\s*: (.*)$', text, re.MULTILINE)
    if not names:
        pytest.skip('no file tells it')
    processor._facts.cache_clear()
    assert processor.name() in names


def test_names(pretend, monkeypatch, tmp_path):
    pretend(*ZEN_4, 'AMD EPYC 9654')
    assert (processor.vendor(), processor.family()) == ZEN_4
    assert processor.name() == 'AMD EPYC 9654'
    # Another system.
    line = 'Intel64 Family 6 Model 143 Stepping 8, GenuineIntel'
    monkeypatch.setattr(processor, '_CPUINFO', tmp_path / 'nothing')
    monkeypatch.setattr(platform, 'processor', lambda: line)
    processor._facts.cache_clear()
    assert processor.vendor() == processor.name() == line
    assert processor.family() == 0
    monkeypatch.setattr(platform, 'processor', lambda: '')
    assert (processor.vendor(), processor.name()) == ('', 'unknown')
