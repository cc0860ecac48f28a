"""ClusTR in small, whatever its options and the image's size."""

import math

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from clustr_mm.backbones.clustr import ClusTR
from tests.test_properties.strategies import image_sizes, images, seeds
from tests.torch_features import LOW_PRECISIONS


@st.composite
def settings(draw, **fixed):
    num_stages = draw(st.integers(1, 4))

    def stages(strategy):
        some = st.lists(strategy, min_size=num_stages, max_size=num_stages)
        return draw(some)

    heads = stages(st.integers(1, 2))
    attention = draw(st.sampled_from(['cluster', 'sra', 'sra_knn']))
    numbers = st.integers(1, 20)
    reduction = (
        stages(numbers | st.lists(numbers, min_size=1, max_size=3))
        if attention == 'cluster'
        else stages(st.sampled_from([1, 4, 9]))
    )
    everywhere = st.sets(st.integers(0, num_stages - 1), min_size=1)
    options = {
        'arch': {
            'depths': stages(st.integers(1, 2)),
            'dims': [4 * h for h in heads],
            'num_heads': heads,
            'ffn_ratios': stages(st.integers(1, 2)),
        },
        'reduction': reduction,
        'attention': attention,
        'k': draw(st.integers(1, 6)),
        'assign': draw(st.sampled_from(['parent', 'nearest'])),
        'window': draw(st.none() | st.integers(1, 8)),
        'reuse': draw(st.booleans()),
        'share': draw(st.just(1.0) | st.floats(0.01, 1)),
        'growth': draw(st.just(1.0) | st.floats(0, 1)),
        'num_keys': draw(st.integers(1, 30)),
        'out_indices': sorted(draw(everywhere)),
    }
    return {**options, **fixed}


def randomized(options, seed):
    """All weights random, biases too, so that nothing is lost in zeros."""
    model = ClusTR(**options)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model.eval()


@given(settings(), images(), seeds())
def test_outputs(options, img, seed):
    model = randomized(options, seed)
    with torch.no_grad():
        outs, again = model(img), model(img)
    assert isinstance(outs, tuple)
    for i, out, same in zip(options['out_indices'], outs, again, strict=True):
        grid = (math.ceil(side / (4 * 2**i)) for side in img.shape[2:])
        assert out.shape == (len(img), options['arch']['dims'][i], *grid)
        assert out.isfinite().all()
        assert torch.equal(out, same)


@given(
    settings(window=None),
    images(sizes=image_sizes(64), max_batch=3),
    seeds(),
)
def test_an_image_is_the_same_alone(options, img, seed):
    """In float64, in which no rounding error decides who is a center.

    To two neighbours, or in a window of two tokens, a pair is equally dense,
    and rounding decides.
    """
    options['k'] += 2
    model = randomized(options, seed).double()
    img = torch.randn(img.shape, dtype=torch.float64)
    with torch.no_grad():
        together = model(img)
        for i in range(len(img)):
            alone = model(img[i : i + 1])
            for one, other in zip(together, alone, strict=True):
                torch.testing.assert_close(one[i : i + 1], other)


@given(settings(), images(sizes=image_sizes(64)), seeds())
def test_training(options, img, seed):
    """Gradients are finite, and the same when blocks are recomputed."""
    assume(len(img) > 1 or min(img.shape[2:]) > 2)
    model = randomized(options, seed).train()
    gradients = []
    for model.with_cp in (False, True):
        model.zero_grad()
        outs = model(img)
        sum(out.square().mean() for out in outs).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert grads
        assert all(grad.isfinite().all() for grad in grads)
        gradients.append(grads)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@given(settings(attention='cluster'), images(), seeds())
def test_a_window_of_everything_changes_nothing(options, img, seed):
    model = randomized({**options, 'window': None}, seed)
    windowed = randomized({**options, 'window': 300}, seed)
    with torch.no_grad():
        for one, other in zip(model(img), windowed(img), strict=True):
            assert torch.equal(one, other)


@given(
    settings(),
    images(),
    st.sampled_from(LOW_PRECISIONS),
    st.booleans(),
    seeds(),
)
def test_half_precision(options, img, dtype, autocast, seed):
    model = randomized(options, seed)
    with torch.no_grad(), torch.autocast('cpu', dtype, enabled=autocast):
        outs = model(img) if autocast else model.to(dtype)(img.to(dtype))
    assert all(out.isfinite().all() for out in outs)


@given(settings(), images(), seeds())
def test_no_images(options, img, seed):
    model = randomized(options, seed)
    with torch.no_grad():
        for out, empty in zip(model(img), model(img[:0]), strict=True):
            assert empty.shape == (0, *out.shape[1:])
