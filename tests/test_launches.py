"""How many operators a forward pass gives a device to do.

A GPU is given them one by one, which takes longer than many of them: a host
that gives too many, or waits for an answer, is what a GPU waits for. Neither
needs a GPU to be seen.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clustr_mm.necks.simple_fpn import SimpleFPN
from clustr_mm.tokens import density_peaks as module
from clustr_mm.tokens import kmeans, merging
from clustr_mm.tokens.density_peaks import density_peaks
from tests.tiny_models import build, clustr, images

# What allocates, and what only the host does.
FREE = {'empty', 'empty_like', 'new_empty', 'empty_strided', 'detach',
        '_unsafe_view', '_reshape_alias', 'resize_'}  # fmt: skip
WAITS = {'_local_scalar_dense', 'nonzero', 'equal', 'masked_select', 'item'}


class Copies(TorchDispatchMode):
    """Counts the copies of tensors."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition('::')[2]
        self.count += name in ('clone', '_to_copy', 'copy_')
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Counts the operators that are more than a view."""

    def __init__(self):
        super().__init__()
        self.count, self.waits = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.partition('::')[2]
        aliases = [r.alias_info for r in func._schema.returns]
        is_view = any(a is not None and not a.is_write for a in aliases)
        self.count += not is_view and name not in FREE
        if name in WAITS:
            self.waits.append(name)
        return func(*args, **(kwargs or {}))


def operators(call):
    with Operators() as found:
        call()
    return found


@pytest.fixture(autouse=True)
def _like_a_device(monkeypatch):
    for searches in module, kmeans:
        monkeypatch.setattr(searches, 'may_look', lambda x: False)
    monkeypatch.setattr(merging, '_has_matrix', lambda *_: True)
    monkeypatch.setattr(module.products, 'is_faster', lambda *_: False)


# Bounds that a few more operators pass, and twice as many do not.
@pytest.mark.parametrize(
    ('options', 'forward', 'backward'),
    [
        ({}, 385, 275),
        (dict(reuse=True), 300, 275),
        (dict(reuse=True, window=10, growth=0.0), 410, 275),
        (dict(share=0.5), 700, 400),
    ],
)
def test_clustr(options, forward, backward):
    img = torch.randn(2, 3, 96, 128)
    model, outs = clustr((1, 2, 2, 1), 16, **options), []
    found = operators(lambda: outs.extend(model(img)))
    loss = sum(out.sum() for out in outs)
    back = operators(loss.backward)
    assert not found.waits
    assert not back.waits
    assert found.count <= forward
    assert back.count <= backward


@pytest.mark.parametrize(
    'name', ['clustr', 'hvt', 'hvt-2d', 'hvt-conv', 'conv', 'lvvit', 'neck']
)
def test_one_image_is_copied_no_more_than_two(name):
    """Of one image, torch easily takes channels last for channels first."""
    if name == 'neck':
        model, inputs = SimpleFPN(48, 16), torch.randn(2, 48, 6, 4)
    elif name == 'clustr':
        model, inputs = clustr((1, 2, 2, 1), 16), images()
    else:
        model, inputs = build(name, out_type='featmap'), images()
    counts = []
    for batch in 1, 2:
        with torch.no_grad(), Copies() as copies:
            model(inputs[:batch])
        counts.append(copies.count)
    assert counts[0] <= counts[1]


# For six blocks, of which five thin.
@pytest.mark.parametrize(
    ('name', 'most'),
    [
        ('kmedoids', 600),
        ('kmeans', 515),
        ('importance', 265),
        ('tome', 300),
        ('evit', 150),
        ('dynamicvit', 150),
    ],
)
def test_vits(name, most):
    model = build(name)
    with torch.no_grad():
        found = operators(lambda: model(images()))
    assert not found.waits
    assert found.count <= most


@pytest.mark.parametrize('numbers', [[30], [60, 30], [90, 60, 30]])
def test_all_numbers_of_clusters_share_their_arithmetic(numbers):
    x = torch.randn(3, 196, 16)
    found = operators(lambda: density_peaks(x, numbers))
    assert found.count <= 42 + len(numbers)


def test_tiles(monkeypatch):
    """A tile more is a few operators more, whatever the batch."""
    x = torch.randn(2, 600, 16)
    monkeypatch.setattr(module, '_TILE_SIZE', {'cpu': 1, 'cuda': 1})
    counts = []
    for height in 300, 100:
        monkeypatch.setattr(module, '_TILE_ROWS', height)
        counts.append(operators(lambda: density_peaks(x, [60])).count)
    # Four more tiles, each in both passes.
    assert counts[1] - counts[0] <= 4 * 30
