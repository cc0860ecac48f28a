"""Where patches went, against lists of what each token is made of."""

import math
from unittest import mock

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from clustr_mm.layers.linear import Linear
from clustr_mm.layers.pooling import TokenPool
from clustr_mm.tokens import products
from clustr_mm.tokens.trail import (
    Trail,
    resize_pooled_positions,
    resize_positions,
    take,
)
from tests.test_properties.strategies import generators, tokens

GRIDS = st.tuples(st.integers(1, 6), st.integers(1, 6))
REPORTS = st.lists(
    st.tuples(st.sampled_from(['select', 'fuse', 'merge']), st.floats(0, 1)),
    max_size=5,
)


class Journey:
    """Images whose tokens are thinned, by lists of each token's patches.

    A token's value is the set of its patches and the time it left at: what
    has left must not change any more.
    """

    def __init__(self, grid, batch):
        self.trail = Trail(grid)
        patches = range(math.prod(grid))
        self.tokens = [[{p} for p in patches] for _ in range(batch)]
        # For each patch, what its token was worth when it left.
        self.left = [{} for _ in range(batch)]
        self.time = 0

    def values(self):
        """Tokens [B, N, 2]: sum of a token's patches, and the time."""
        return torch.tensor(
            [[[sum(t), self.time] for t in image] for image in self.tokens]
        ).view(len(self.tokens), -1, 2)

    def report(self, rule, share, generator):
        batch, length = len(self.tokens), len(self.tokens[0])
        if not length:
            return
        order = torch.rand(batch, length, generator=generator).argsort(1)
        num_kept = round(share * length)
        if rule == 'merge':
            num_kept = max(num_kept, 1)
            labels = order % num_kept
            self.trail.merge(labels, num_kept)
        elif rule == 'select':
            self.trail.select(order, num_kept, self.values())
        else:
            self.trail.fuse(order, num_kept)
        for i, image in enumerate(self.tokens):
            places = order[i].tolist()
            ranked = [image[place] for place in places]
            kept, others = ranked[:num_kept], ranked[num_kept:]
            if rule == 'merge':
                kept = [set() for _ in range(num_kept)]
                for token, label in zip(image, labels[i].tolist()):
                    kept[label] |= token
            elif rule == 'select':
                for token in others:
                    value = [sum(token), self.time]
                    self.left[i].update(dict.fromkeys(token, value))
            else:
                kept.append(set().union(*others))
            self.tokens[i] = kept
        self.time += 1

    def expected(self):
        """What each patch's token is worth, [B, N, 2]."""
        values = [dict(left) for left in self.left]
        for image, found in zip(self.tokens, values):
            for token in image:
                found.update(dict.fromkeys(token, [sum(token), self.time]))
        return torch.tensor([[v[p] for p in sorted(v)] for v in values])


@given(GRIDS, st.integers(1, 3), REPORTS, generators())
def test_every_patch_finds_its_token(grid, batch, reports, generator):
    journey = Journey(grid, batch)
    for rule, share in reports:
        journey.report(rule, share, generator)
    trail, x = journey.trail, journey.values()
    bank, expected = trail.bank(x), journey.expected()
    assert torch.equal(trail.spread(bank), expected)
    fmap = expected.mT.reshape(batch, 2, *grid)
    assert torch.equal(trail.to_map(bank), fmap)
    mean = expected.double().mean(1)
    torch.testing.assert_close(trail.mean(bank.double()), mean)
    sizes = [[len(token) for token in image] for image in journey.tokens]
    assert trail.sizes(x).tolist() == sizes
    owners = trail.owners(batch)
    assert owners.shape == (batch, math.prod(grid))
    assert torch.equal(take(bank, owners), expected)


@given(GRIDS, st.integers(1, 3), REPORTS, generators())
def test_nothing_is_remembered_without_track(grid, batch, reports, generator):
    journey = Journey(grid, batch)
    journey.trail.track = False
    for rule, share in reports:
        journey.report(rule, share, generator)
    assert journey.trail.owner is None
    assert not journey.trail.steps


@given(
    GRIDS,
    st.integers(1, 3),
    st.sampled_from(['max', 'avg', 'conv']),
    st.sampled_from([(1, 3, 2, 0), (2, 3, 2, 1), (2, 2, 2, 0), (1, 2, 1, 1)]),
    st.integers(1, 3),
    st.booleans(),
)
def test_pooled_tokens_make_maps(grid, batch, op, how, times, positions):
    dims, kernel, stride, padding = how
    trail, x = Trail(grid), torch.randn(batch, math.prod(grid), 4)
    shape = None
    for _ in range(times):
        pool = TokenPool(
            op,
            dims,
            kernel,
            stride,
            padding,
            positions,
            shape,
            block=0,
            embed_dims=4,
            grid=grid,
        )
        x = pool(x, trail)
        shape = trail.pooled
        assert x.shape == (batch, math.prod(shape), 4)
        assert not positions or pool.shape == shape
    assert trail.to_map(x).shape == (batch, 4, *grid)
    assert trail.to_map(x).isfinite().all()
    owners = trail.owners(batch)
    assert 0 <= owners.min() <= owners.max() < x.shape[1]
    constant = torch.ones_like(x)
    torch.testing.assert_close(trail.to_map(constant).amin(), torch.ones(()))


@given(
    GRIDS, GRIDS, st.integers(0, 2), st.sampled_from(['bicubic', 'nearest'])
)
def test_resized_positions(old, new, extra, mode):
    positions = torch.randn(1, extra + math.prod(old), 3)
    found = resize_positions(positions, old, new, extra, mode)
    assert found.shape == (1, extra + math.prod(new), 3)
    assert torch.equal(found[:, :extra], positions[:, :extra])
    if old == new:
        assert torch.equal(found, positions)
    constant = torch.full_like(positions, 2.0)
    found = resize_positions(constant, old, new, extra, mode)
    torch.testing.assert_close(found, torch.full_like(found, 2.0))
    # Transposed images have transposed positions.
    fmap = positions[:, extra:].view(1, *old, 3)
    turned = fmap.transpose(1, 2).flatten(1, 2)
    one = resize_positions(positions[:, extra:], old, new, 0, mode)
    other = resize_positions(turned, old[::-1], new[::-1], 0, mode)
    other = other.view(1, *new[::-1], 3).transpose(1, 2).flatten(1, 2)
    torch.testing.assert_close(one, other)


@given(GRIDS, GRIDS, st.integers(1, 36), st.integers(1, 36))
def test_resized_pooled_positions(old, new, length, pooled):
    positions = torch.randn(1, min(pooled, math.prod(old)), 3)
    found = resize_pooled_positions(positions, old, new, length)
    assert found.shape == (1, length, 3)
    assert found.isfinite().all()
    constant = torch.full_like(positions, 2.0)
    found = resize_pooled_positions(constant, old, new, length)
    torch.testing.assert_close(found, torch.full_like(found, 2.0))


@given(tokens(), st.integers(0, 50), generators())
def test_take(x, count, generator):
    batch, length, _ = x.shape
    index = torch.randint(length, (batch, count), generator=generator)
    found = take(x, index)
    assert found.shape == (batch, count, x.shape[2])
    for image, places, row in zip(x, index, found, strict=True):
        assert torch.equal(row, image[places])


@given(
    tokens(dtypes=(torch.float32,), kinds=('normal', 'offset')),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_linear_by_onednn(x, channels, bias, turned):
    layer = Linear(x.shape[2], channels, bias=bias)
    if turned:
        x = x.transpose(0, 1)
    # Of tokens around 1000 torch's own are off by more than is asked here.
    is_moderate = x.abs().max() < 100
    onednn = mock.patch.object(products, '_library', return_value='onednn')
    with torch.no_grad(), onednn:
        for some in (x, x[:0], x[0]):
            found = layer(some)
            error = (found - exact_linear(some, layer)).abs()
            assert (error <= rounding_of_linear(some, layer)).all()
            if is_moderate:
                torch.testing.assert_close(
                    found, F.linear(some, layer.weight, layer.bias)
                )


def exact_linear(x, layer):
    bias = None if layer.bias is None else layer.bias.double()
    return F.linear(x.double(), layer.weight.double(), bias)


def rounding_of_linear(x, layer):
    """What a sum in float32 may be off by: eps times its terms, for each."""
    bias = None if layer.bias is None else layer.bias.abs().double()
    terms = F.linear(x.abs().double(), layer.weight.abs().double(), bias)
    return (x.shape[-1] + 1) * torch.finfo(torch.float32).eps * terms


@given(
    tokens(dtypes=(torch.float32,), kinds=('normal',)),
    st.integers(1, 9),
    generators(),
)
def test_products_by_onednn(x, height, generator):
    batch, length, channels = x.shape
    rows = torch.randn(batch, height, channels, generator=generator)
    bias = torch.randn(batch, length, generator=generator)
    expected = rows @ x.mT + bias[:, None]
    found = products.batched_linear(rows, x, bias)
    assert found.shape == (height, batch, length)
    torch.testing.assert_close(found.transpose(0, 1), expected)
