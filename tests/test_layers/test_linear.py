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
    assert torch.equal(linear(x), out)


@pytest.mark.usefixtures('_threads')
@pytest.mark.parametrize('bias', [True, False])
def test_gradients_of_both_orders(bias):
    linear = Linear(32, 48, bias=bias)
    x = torch.randn(3, 7, 32, requires_grad=True)
    inputs = [x, *linear.parameters()]
    found = []
    for function in linear, nn.functional.linear:
        args = [x] if function is linear else inputs
        loss = function(*args).square().sum()
        first = torch.autograd.grad(loss, inputs, create_graph=True)
        second = sum(gradient.square().sum() for gradient in first)
        found.append((first, torch.autograd.grad(second, inputs)))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-3)


def test_what_is_frozen_gets_no_gradient():
    linear, x = Linear(32, 48), torch.randn(5, 32)
    linear.weight.requires_grad_(False)
    linear(x).sum().backward()
    assert linear.weight.grad is None
    assert x.grad is None
    torch.testing.assert_close(linear.bias.grad, torch.full((48,), 5.0))
    assert not linear.requires_grad_(False)(x).requires_grad


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
