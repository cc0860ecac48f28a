import math

import pytest
import torch

from clustr_mm.tokens import trail as module
from clustr_mm.tokens.trail import (
    Trail,
    resize_pooled_positions,
    resize_positions,
    take,
)


def tokens(batch, length, seed=0, channels=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, channels, generator=generator)


def ranking(batch, length, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(batch, length, generator=generator).argsort(1)


def test_take():
    x, index = tokens(2, 5), torch.tensor([[3, 0, 3], [4, 4, 1]])
    for b in range(2):
        assert torch.equal(take(x, index)[b], x[b, index[b]])


def test_nothing_done():
    trail, x = Trail((2, 3)), tokens(2, 6)
    fmap = trail.to_map(trail.bank(x))
    assert torch.equal(fmap[1, :, 1, 2], x[1, 5])
    assert torch.equal(trail.sizes(x), torch.ones(2, 6))
    assert torch.equal(trail.owners(2), torch.arange(6).expand(2, 6))
    assert torch.equal(trail.mean(x), x.mean(1))


def test_untracked_reports_keep_nothing():
    trail, x = Trail((2, 3), track=False), tokens(2, 6)
    trail.select(ranking(2, 6), 2, x)
    trail.fuse(ranking(2, 2), 1)
    assert trail.owner is None
    assert trail.bank(x) is x


def follow(trail, x, steps):
    """Thin tokens by these steps, and each image by hand beside them.

    By hand, every patch knows the value that it left with, or the token it is
    in.
    """
    batch, length = x.shape[:2]
    inside = [{p: p for p in range(length)} for _ in range(batch)]
    frozen = [{} for _ in range(batch)]
    for number, (what, kept) in enumerate(steps):
        x = x + number + 1  # blocks change tokens between steps
        length = x.shape[1]
        if what == 'merge':
            labels = ranking(batch, length, number) % kept
            trail.merge(labels, kept)
            new = tokens(batch, kept, 100 + number)
            to = [
                {i: labels[b, i].item() for i in range(length)}
                for b in range(batch)
            ]
        else:
            order = ranking(batch, length, number)
            new = take(x, order[:, :kept])
            to = [
                {order[b, i].item(): i for i in range(kept)}
                for b in range(batch)
            ]
            if what == 'fuse':
                new = torch.cat([new, tokens(batch, 1, 200 + number)], 1)
                to = [{i: t.get(i, kept) for i in range(length)} for t in to]
                trail.fuse(order, kept)
            else:
                trail.select(order, kept, x)
        for b in range(batch):
            for patch, token in list(inside[b].items()):
                if token in to[b]:
                    inside[b][patch] = to[b][token]
                else:
                    frozen[b][patch] = x[b, token]
                    del inside[b][patch]
        x = new
    values = [
        [
            frozen[b][p] if p in frozen[b] else x[b, inside[b][p]]
            for p in range(trail.num_patches)
        ]
        for b in range(batch)
    ]
    sizes = [
        [
            sum(token == n for token in inside[b].values())
            for n in range(x.shape[1])
        ]
        for b in range(batch)
    ]
    return x, torch.stack([torch.stack(v) for v in values]), sizes


@pytest.mark.parametrize(
    'steps',
    [
        [('select', 9)],
        [('select', 9), ('select', 9), ('select', 4), ('select', 0)],
        [('fuse', 7), ('fuse', 7), ('fuse', 3)],
        [('fuse', 0)],
        [('merge', 8), ('merge', 5), ('select', 0)],
        [('select', 10), ('merge', 4), ('select', 2), ('fuse', 1)],
        [('merge', 12), ('select', 6), ('merge', 3), ('select', 1)],
    ],
)
def test_map_matches_bookkeeping_by_hand(steps):
    trail, x = Trail((3, 4)), tokens(3, 12)
    x, values, sizes = follow(trail, x, steps)
    bank = trail.bank(x)
    fmap = trail.to_map(bank)
    assert fmap.shape == (3, 3, 3, 4)
    assert torch.equal(fmap.flatten(2).mT, values)
    assert torch.equal(trail.sizes(x), torch.tensor(sizes).float())
    assert torch.allclose(trail.mean(bank), values.mean(1), atol=1e-6)
    assert len(trail.steps) == len(steps)


def test_gradients_reach_what_left():
    x = tokens(2, 6).requires_grad_()
    trail, order = Trail((2, 3)), ranking(2, 6)
    trail.select(order, 2, x)
    trail.to_map(trail.bank(take(x, order[:, :2]))).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))


def test_pooled_sequence_is_interpolated_then_folded():
    trail = Trail((4, 6))
    trail.pool((12,))
    ramp = torch.arange(12.0)[None, :, None]
    fmap = trail.to_map(trail.bank(ramp))
    flat = fmap.flatten()
    assert fmap.shape == (1, 1, 4, 6)
    # Halving a ramp of step 2 puts its values at 0.5, 2.5, ...
    assert torch.allclose(flat[1:-1], torch.arange(1, 23) / 2 - 0.25)
    owners = trail.owners(1)
    assert torch.equal(owners[0], torch.arange(24) // 2)
    assert torch.equal(trail.mean(ramp), ramp.mean(1))


def test_pooled_map_is_interpolated():
    trail = Trail((4, 4))
    trail.pool((2, 2))
    x = torch.tensor([0.0, 1.0, 2.0, 3.0])[None, :, None]
    fmap = trail.to_map(x)[0, 0]
    assert torch.equal(fmap[[0, 0, -1, -1], [0, -1, 0, -1]], x[0, :, 0])
    assert trail.owners(2)[1].tolist() == [
        *[0, 0, 1, 1] * 2,
        *[2, 2, 3, 3] * 2,
    ]


def test_pooling_and_selecting_do_not_mix():
    trail, x = Trail((2, 2)), tokens(1, 4)
    trail.select(ranking(1, 4), 2, x)
    with pytest.raises(ValueError, match='no order left'):
        trail.pool((1,))
    trail = Trail((2, 2))
    trail.pool((2,))
    with pytest.raises(ValueError, match='cannot be selected'):
        trail.merge(torch.zeros(1, 2, dtype=torch.long), 1)


def test_resize_positions():
    extra, grid = torch.randn(1, 2, 5), torch.randn(1, 5, 4, 6)
    positions = torch.cat([extra, grid.flatten(2).mT], 1)
    same = resize_positions(positions, (4, 6), (4, 6), 2)
    assert same is positions
    resized = resize_positions(positions, (4, 6), (7, 3), 2)
    reference = torch.nn.functional.interpolate(
        grid, size=(7, 3), mode='bicubic', align_corners=False
    )
    assert torch.equal(resized[:, :2], extra)
    assert torch.equal(resized[:, 2:], reference.flatten(2).mT)
    assert resize_positions(positions.half(), (4, 6), (1, 1), 2).dtype == (
        torch.half
    )


def cubic(distance):
    """The kernel of bicubic interpolation, with a = -0.75."""
    a, x = -0.75, abs(distance)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0


def resizing_by_definition(old, new, offset):
    """A matrix [new, old]; the scale is that of a larger new side."""
    matrix = torch.zeros(new, old)
    for i in range(new):
        place = (i + 0.5) * old / (new + offset) - 0.5
        for tap in range(math.floor(place) - 1, math.floor(place) + 3):
            matrix[i, min(max(tap, 0), old - 1)] += cubic(place - tap)
    return matrix


@pytest.mark.parametrize('offset', [0.0, 0.1])
@pytest.mark.parametrize('new', [(16, 16), (40, 9), (1, 38)])
def test_resizing_by_an_offset(new, offset):
    """That of DINOv2, from the 37 x 37 patches of its checkpoints."""
    positions = torch.randn(1, 1 + 37 * 37, 3)
    found = resize_positions(positions, (37, 37), new, 1, offset=offset)
    rows, columns = (resizing_by_definition(37, n, offset) for n in new)
    grid = positions[0, 1:].unflatten(0, (37, 37))
    expected = torch.einsum('hi,wj,ijc->hwc', rows, columns, grid)
    assert torch.equal(found[:, :1], positions[:, :1])
    torch.testing.assert_close(
        found[0, 1:], expected.flatten(0, 1), rtol=1e-4, atol=1e-4
    )


def test_resize_pooled_positions_keeps_places_in_the_image():
    # An embedding that is the row of the image, pooled by 2 on 8 x 8 patches.
    rows = torch.arange(64.0).div(8, rounding_mode='floor')
    pooled = rows.view(1, 32, 2).mean(2)[..., None]
    same = resize_pooled_positions(pooled, (8, 8), (8, 8), 32)
    assert same is pooled
    wide = resize_pooled_positions(pooled, (8, 8), (8, 16), 64)
    expected = torch.arange(64.0).div(8, rounding_mode='floor')
    assert wide.shape == (1, 64, 1)
    assert (wide[0, :, 0] - expected).abs().max() < 0.6


@pytest.mark.parametrize(
    ('mode', 'shape', 'target'),
    [
        ('linear', (7,), dict(size=(12,))),
        ('linear', (12,), dict(size=(5,))),
        ('nearest-exact', (5,), dict(size=(8,))),
        ('bilinear', (4, 6), dict(size=(9, 3))),
        ('bicubic', (4, 6), dict(size=(9, 3))),
        ('bicubic', (37, 37), dict(scale_factor=[16.1 / 37, 20.1 / 37])),
        ('nearest', (4, 6), dict(size=(9, 3))),
        ('area', (4, 6), dict(size=(2, 3))),
    ],
)
def test_resizes_by_products_where_gradients_shall_repeat(mode, shape, target):
    fmap = torch.randn(2, 3, *shape, dtype=torch.float64, requires_grad=True)
    expected = module._resize(fmap, mode, **target)
    direction = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad((expected * direction).sum(), fmap)
    torch.use_deterministic_algorithms(True)
    try:
        found = module._resize(fmap, mode, **target)
    finally:
        torch.use_deterministic_algorithms(False)
    assert 'Upsample' not in type(found.grad_fn.next_functions[0][0]).__name__
    torch.testing.assert_close(found, expected)
    found = torch.autograd.grad((found * direction).sum(), fmap)
    torch.testing.assert_close(found, (gradient,))
