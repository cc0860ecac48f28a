import pytest
import torch
from torch import nn

from clustr_mm.layers.linear import Linear
from clustr_mm.tokens import products


@pytest.fixture(autouse=True)
def _onednn(monkeypatch):
    """On all processors."""
    monkeypatch.setattr(products, '_library', lambda: 'onednn')


@pytest.fixture(params=[1, 2])
def _threads(request):
    """With one thread, torch does not use oneDNN."""
    threads = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures('_threads')
@pytest.mark.parametrize('shape', [(8, 197, 32), (1, 1, 32), (5, 32), (32,)])
@pytest.mark.parametrize('bias', [True, False])
def test_same_as_torch(shape, bias):
    linear = Linear(32, 48, bias=bias)
    x = torch.randn(shape)
    expected = nn.functional.linear(x, linear.weight, linear.bias)
    with torch.no_grad():
        out = linear(x)
    assert out.is_contiguous()
    torch.testing.assert_close(out, expected)
    assert torch.equal(linear(x), expected)


def test_views_and_nothing():
    linear = Linear(32, 48)
    x = torch.randn(2, 32, 9).mT[:, 1:]
    with torch.no_grad():
        torch.testing.assert_close(linear(x), linear(x.contiguous()))
        assert linear(x[:0]).shape == (0, 8, 48)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
def test_other_types(dtype):
    linear, x = Linear(32, 48).to(dtype), torch.randn(2, 9, 32, dtype=dtype)
    with torch.no_grad():
        assert linear(x).dtype == dtype
    assert linear(x).requires_grad
