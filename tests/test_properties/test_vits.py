"""Every plain ViT, in small, whatever its options and the image's size."""

import math

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from clustr_mm.backbones.dynamic_vit import DynamicViT
from clustr_mm.backbones.evit import EViT
from clustr_mm.backbones.hvt import HVT
from clustr_mm.backbones.lvvit import DynamicLVViT, LVViT
from clustr_mm.backbones.token_pooling import TokenPoolingDeiT
from clustr_mm.backbones.tome import ToMe, match
from clustr_mm.backbones.vit import ThinViT, vit_arch
from tests.test_properties.strategies import (
    MODERATE,
    generators,
    image_sizes,
    images,
    seeds,
    tokens,
)
from tests.torch_features import LOW_PRECISIONS

PATCH, DIMS = 4, 8
SHARES = st.floats(0, 1)


def blocks(depth, min_size=0):
    """Some blocks, in order."""
    some = st.sets(st.integers(0, depth - 1), min_size=min_size)
    return some.map(sorted)


def falling(strategy, **kwargs):
    return st.lists(strategy, **kwargs).map(lambda x: sorted(x, reverse=True))


def nothing(draw, depth, num_patches):
    return {}


def hvt(draw, depth, num_patches):
    places = st.one_of(
        st.fixed_dictionaries({'num_stages': st.integers(0, depth)}),
        st.fixed_dictionaries({'reduce_at': blocks(depth)}),
    )
    return {
        'op': draw(st.sampled_from(['max', 'avg', 'conv'])),
        'dims': draw(st.sampled_from([1, 2])),
        'with_cls_token': False,
        **draw(places),
    }


def token_pooling(draw, depth, num_patches):
    method = draw(st.sampled_from(TokenPoolingDeiT.METHODS))
    if method == 'conv':
        return {'method': method, 'reduce_at': draw(blocks(depth, 1))}
    keep = st.lists(
        st.integers(0, num_patches), min_size=depth, max_size=depth
    )
    return {
        'method': method,
        'keep': draw(keep),
        'weighted': draw(st.booleans()),
        'init': draw(st.sampled_from(['significance', 'random'])),
        'iters': draw(st.integers(1, 3)),
        'carry': draw(st.booleans()),
    }


def evit(draw, depth, num_patches):
    keep = st.one_of(SHARES, st.lists(SHARES, min_size=depth, max_size=depth))
    return {
        'keep': draw(keep),
        'fuse': draw(st.booleans()),
        'reduce_at': draw(st.none() | blocks(depth)),
        'with_cls_token': True,
    }


def dynamic_vit(draw, depth, num_patches):
    reduce_at = draw(blocks(depth))
    keep = falling(SHARES, min_size=len(reduce_at), max_size=len(reduce_at))
    return {'keep': draw(SHARES | keep), 'reduce_at': reduce_at}


def tome(draw, depth, num_patches):
    numbers = st.integers(0, 2 * num_patches)
    merge = numbers | st.lists(numbers, min_size=depth, max_size=depth)
    return {
        'merge': draw(merge),
        'schedule': draw(st.sampled_from(['constant', 'decreasing'])),
        'carry': draw(st.booleans()),
    }


RULES = {
    ThinViT: nothing,
    HVT: hvt,
    TokenPoolingDeiT: token_pooling,
    EViT: evit,
    DynamicViT: dynamic_vit,
    ToMe: tome,
    LVViT: nothing,
    DynamicLVViT: dynamic_vit,
}


def randomized(model, seed):
    """All weights random, biases too, so that nothing is lost in zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model.eval()


@st.composite
def settings(draw, **fixed):
    """A class and arguments for it."""
    model = draw(st.sampled_from(list(RULES)))
    depth = draw(st.integers(1, 4))
    img_size = draw(st.tuples(st.integers(1, 24), st.integers(1, 24)))
    num_patches = math.prod(math.ceil(side / PATCH) for side in img_size)
    options = {
        'arch': vit_arch(DIMS, depth, 2, mlp_ratio=2),
        'img_size': img_size,
        'patch_size': PATCH,
        'with_cls_token': draw(st.booleans()),
        'qk_norm': draw(st.sampled_from([None, 'fixed', 'learned'])),
        'layer_scale_init_value': draw(st.sampled_from([0.0, 0.1])),
        'final_norm': draw(st.booleans()),
        'pool_norm': draw(st.booleans()),
        'interpolate_mode': draw(st.sampled_from(['bicubic', 'bilinear'])),
        **RULES[model](draw, depth, num_patches),
    }
    if issubclass(model, LVViT):
        options['stem_channels'] = 4
    indices = st.lists(st.integers(0, depth - 1), min_size=1, unique=True)
    options['out_indices'] = draw(st.just(-1) | indices)
    out_types = list(ThinViT.OUT_TYPES)
    if not options['with_cls_token']:
        out_types.remove('cls_token')
    options['out_type'] = draw(st.sampled_from(out_types))
    return model, {**options, **fixed}


@st.composite
def models(draw, **fixed):
    model, options = draw(settings(**fixed))
    return randomized(model(**options), draw(seeds()))


def grid_of(img):
    return tuple(math.ceil(side / PATCH) for side in img.shape[2:])


def indices_of(model, options):
    asked = options['out_indices']
    return [model.num_layers - 1] if asked == -1 else sorted(asked)


@given(settings(), images(), seeds())
def test_outputs(case, img, seed):
    """Their number, shape and sanity, and that they are so each time."""
    make, options = case
    model = randomized(make(**options), seed)
    with torch.no_grad():
        outs, again = model(img), model(img)
        traced, trail = model.trace(img)
    assert isinstance(outs, tuple)
    assert len(outs) == len(indices_of(model, options))
    out_type, grid = options['out_type'], grid_of(img)
    for out, same, other in zip(outs, again, traced, strict=True):
        assert out.isfinite().all()
        assert torch.equal(out, same)
        assert torch.equal(out, other)
        if out_type == 'featmap':
            assert out.shape == (len(img), DIMS, *grid)
        elif out_type == 'raw':
            assert out.shape[::2] == (len(img), DIMS)
        else:
            assert out.shape == (len(img), DIMS)
    owners = trail.owners(len(img))
    assert owners.shape == (len(img), math.prod(grid))
    assert owners.min() >= 0


def lengths(model, options, num_patches):
    """How many patch tokens each block leaves, as the papers count."""
    depth, length = model.num_layers, num_patches
    usual = math.prod(model.grid)
    reduce_at, keep = options.get('reduce_at'), options.get('keep')
    for block in range(depth):
        if isinstance(model, TokenPoolingDeiT):
            # The usual size: exactly what was asked for.
            length = min(length, keep[block])
        elif isinstance(model, EViT):
            if isinstance(keep, list):
                rate = keep[block]
            else:
                quarters = [depth * i // 4 for i in (1, 2, 3)]
                places = quarters if reduce_at is None else reduce_at
                rate = keep if block in places else 1
            kept = math.ceil(rate * length)
            if kept < length:
                length = kept + options['fuse']
        elif (
            isinstance(model, (DynamicViT, DynamicLVViT))
            and block in reduce_at
        ):
            stage = reduce_at.index(block)
            many = isinstance(keep, list)
            share = keep[stage] if many else keep ** (stage + 1)
            kept = max(int(share * usual), 1) if share else 0
            length = min(length, kept)
        elif isinstance(model, ToMe):
            merge, last = options['merge'], max(depth - 1, 1)
            if isinstance(merge, list):
                merge = merge[block]
            elif options['schedule'] == 'decreasing':
                merge = 2 * merge * (last - block) // last
            length -= min(merge, length // 2)
        yield length


@given(settings(out_type='raw'), seeds())
def test_numbers_of_tokens(case, seed):
    """Of an image of the usual size."""
    make, options = case
    assume(make is not HVT and options.get('method') != 'conv')
    model = make(**options).eval()
    grid = model.grid
    img = torch.randn(1, 3, *options['img_size'])
    with torch.no_grad():
        outs = model(img)
    expected = list(lengths(model, options, math.prod(grid)))
    for i, out in zip(indices_of(model, options), outs, strict=True):
        assert out.shape[1] == expected[i] + model.num_extra_tokens


@given(models(), images(sizes=image_sizes(24), max_batch=3))
def test_an_image_is_the_same_alone(model, img):
    """In float64, in which no rounding error decides who stays."""
    # Noise, as what looks the same is a tie.
    img = torch.randn(img.shape, dtype=torch.float64)
    model = model.double()
    with torch.no_grad():
        together = model(img)
        for i in range(len(img)):
            alone = model(img[i : i + 1])
            for one, other in zip(together, alone, strict=True):
                torch.testing.assert_close(one[i : i + 1], other)


@given(models(), images(sizes=image_sizes(24)), st.booleans(), seeds())
def test_training(model, img, with_cp, seed):
    """Gradients are finite, and the same when blocks are recomputed."""
    assume(len(img) > 1 or min(img.shape[2:]) > 2 * PATCH)
    gradients = []
    for model.with_cp in (False, True):
        torch.manual_seed(seed)
        model.zero_grad()
        outs = model.train()(img)
        assert all(out.isfinite().all() for out in outs)
        # The mean, and 0 where a rate keeps nothing of a single patch.
        means = [out.square().sum() / max(out.numel(), 1) for out in outs]
        sum(means).backward()
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        assert grads
        assert all(grad.isfinite().all() for grad in grads)
        gradients.append(grads)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@given(settings(), st.integers(-1, 4), images(sizes=image_sizes(24)))
def test_frozen_stages(case, frozen, img):
    make, options = case
    assume(frozen <= options['arch']['num_layers'])
    assume(len(img) > 1 or min(img.shape[2:]) > 2 * PATCH)
    model = make(**options, frozen_stages=frozen).train()
    outs = [out.sum() for out in model(img) if out.requires_grad]
    if outs:
        sum(outs).backward()
    for name, parameter in model.named_parameters():
        depth, _ = model.get_layer_depth(name)
        if depth <= frozen and not name.startswith('norm'):
            assert not parameter.requires_grad
        elif frozen < 0:
            assert parameter.requires_grad
        assert parameter.requires_grad or parameter.grad is None


@given(
    models(),
    images(),
    st.sampled_from(LOW_PRECISIONS),
    st.booleans(),
)
def test_half_precision(model, img, dtype, autocast):
    with torch.no_grad(), torch.autocast('cpu', dtype, enabled=autocast):
        outs = model(img) if autocast else model.to(dtype)(img.to(dtype))
    assert all(out.isfinite().all() for out in outs)


@given(models(), images(sizes=image_sizes(24)))
def test_no_images(model, img):
    with torch.no_grad():
        for out, empty in zip(model(img), model(img[:0]), strict=True):
            assert empty.shape == (0, *out.shape[1:])


@given(tokens(kinds=MODERATE), generators())
def test_matching(keys, generator):
    """ToMe's pairs, by comparing all of them."""
    num_tokens = keys.shape[1]
    most = num_tokens // 2
    num_merged = int(torch.randint(most + 1, (), generator=generator))
    assume(num_merged)
    labels = match(keys, num_merged)
    length = num_tokens - num_merged
    unit = torch.nn.functional.normalize(keys.double(), dim=-1)
    for image, found in zip(unit, labels.tolist(), strict=True):
        assert set(found) == set(range(length))
        similarity = image @ image.T
        evens, odds = range(0, num_tokens, 2), range(1, num_tokens, 2)
        # Who was looked at keeps its order, at the end.
        start = length - len(evens)
        assert [found[i] for i in evens] == list(range(start, length))
        staying = [i for i in odds if found[i] < start]
        assert [found[i] for i in staying] == list(range(len(staying)))
        best = {i: max(similarity[i, j] for j in evens) for i in odds}
        merged = [i for i in odds if i not in staying]
        assert len(merged) == num_merged
        for i in merged:
            partner = evens[found[i] - start]
            assert similarity[i, partner] >= best[i] - 1e-5
            assert all(best[i] >= best[j] - 1e-5 for j in staying)
