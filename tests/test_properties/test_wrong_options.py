"""A value that an option cannot have ends in an error with its name."""

import inspect
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clustr_mm.backbones.clustr import ClusTR
from clustr_mm.backbones.dynamic_vit import DynamicViT
from clustr_mm.backbones.evit import EViT
from clustr_mm.backbones.hvt import HVT
from clustr_mm.backbones.lvvit import DynamicLVViT, LVViT
from clustr_mm.backbones.token_pooling import TokenPoolingDeiT
from clustr_mm.backbones.tome import ToMe
from clustr_mm.backbones.vit import ThinViT, vit_arch
from clustr_mm.tokens.density_peaks import density_peaks
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from tests.tiny_models import clustr_arch

DEPTH, PATCHES = 4, 4
ARCH = vit_arch(8, DEPTH, 2, mlp_ratio=2)
SMALL = {'arch': ARCH, 'img_size': 8, 'patch_size': 4}
PYRAMID = {
    'arch': clustr_arch((1, 1), 4),
    'reduction': [4, 1],
    'out_indices': [0, 1],
}
# Text alone would find names that are right, such as 'raw'.
NAMES = st.text(max_size=5).map('no {}'.format)
NEGATIVE = st.integers(max_value=-1)
NOT_POSITIVE = st.integers(max_value=0)
NAN = st.just(math.nan)
NO_SHARE = NAN | st.floats(max_value=0, exclude_max=True) | st.floats(1.01)
NO_RATE = NO_SHARE | st.just(1.0)
NO_BLOCK = NEGATIVE | st.integers(DEPTH)


def other_lengths(values):
    return st.lists(values, max_size=8).filter(lambda x: len(x) != DEPTH)


def some(values):
    """Lists that have one of these among good values."""
    return values.map(lambda value: [1, value])


NO_BLOCKS = some(NO_BLOCK) | st.sampled_from([[1, 1], [2, 1], [0, 3, 2]])
VIT = {
    'arch': NAMES | st.just({'embed_dims': 8}),
    'img_size': NOT_POSITIVE | st.tuples(NOT_POSITIVE, st.just(8)),
    'patch_size': NOT_POSITIVE,
    'out_indices': st.integers(DEPTH)
    | st.integers(max_value=-DEPTH - 1)
    | some(st.integers(DEPTH))
    | st.sampled_from([[1, 1], [-1, DEPTH - 1], []]),
    'out_type': NAMES,
    'qk_norm': NAMES,
    'qk_alpha': NOT_POSITIVE | NAN,
    'drop_rate': NO_RATE,
    'attn_drop_rate': NO_RATE,
    'drop_path_rate': NO_RATE,
    'frozen_stages': st.integers(DEPTH + 1) | st.integers(max_value=-2),
    'interpolate_mode': NAMES,
    'interpolate_offset': NO_RATE,
}
OWN = {
    ThinViT: VIT,
    LVViT: {'stem_channels': NEGATIVE},
    HVT: {
        'num_stages': NEGATIVE | st.integers(DEPTH + 1),
        'op': NAMES,
        'dims': st.integers(3) | NEGATIVE,
        'reduce_at': NO_BLOCKS,
        'out_type': st.just('cls_token'),
    },
    TokenPoolingDeiT: {
        'keep': other_lengths(st.integers(0, PATCHES))
        | some(NEGATIVE).map(lambda x: x * 2)
        | some(st.integers(PATCHES + 1)).map(lambda x: x * 2),
        'method': NAMES,
        'init': NAMES,
        'iters': NOT_POSITIVE,
    },
    EViT: {
        'keep': NO_SHARE | other_lengths(st.floats(0, 1)),
        'reduce_at': NO_BLOCKS,
    },
    DynamicViT: {
        'keep': NO_SHARE
        | st.lists(st.floats(0, 1), min_size=4)
        | st.sampled_from([[], [0.5, 0.6, 0.7]]),
        'reduce_at': NO_BLOCKS,
    },
    DynamicLVViT: {'keep': NO_SHARE},
    ToMe: {
        'merge': NEGATIVE | other_lengths(st.integers(0, 4)),
        'schedule': NAMES,
    },
}
# What the others need to be right.
GOOD = {TokenPoolingDeiT: {'keep': [4, 3, 2, 1]}, ToMe: {'merge': 1}}
CLUSTR = {
    'arch': NAMES | st.just({'depths': [1, 1]}),
    'reduction': st.sampled_from([[4], [4, 0], [4, []], [4, [1, -1]]]),
    'attention': NAMES,
    'k': NOT_POSITIVE,
    'assign': NAMES,
    'window': NOT_POSITIVE,
    'share': NO_SHARE | st.just(0.0),
    'num_keys': NOT_POSITIVE,
    'drop_path_rate': NO_RATE,
    'out_indices': some(st.integers(2) | NEGATIVE)
    | st.sampled_from([[1, 1], []]),
    'frozen_stages': st.integers(3) | st.integers(max_value=-2),
}
CASES = [
    (model, name, wrong)
    for model, own in OWN.items()
    for name, wrong in own.items()
] + [(ClusTR, name, wrong) for name, wrong in CLUSTR.items()]


@pytest.mark.parametrize(
    ('model', 'name', 'wrong'),
    CASES,
    ids=[f'{model.__name__}-{name}' for model, name, _ in CASES],
)
@given(data=st.data())
def test_backbones(model, name, wrong, data):
    good = PYRAMID if model is ClusTR else {**SMALL, **GOOD.get(model, {})}
    value = data.draw(wrong, label=name)
    with pytest.raises(ValueError, match=name):
        model(**{**good, name: value})


@pytest.mark.parametrize('model', [*OWN, ClusTR])
def test_no_option_takes_just_anything(model):
    for name in inspect.signature(model).parameters.keys() - {'kwargs'}:
        with pytest.raises(TypeError, match=f'^{name} of {model.__name__} '):
            model(**{name: object()})


@given(st.sampled_from(['k', 'assign', 'window', 'share']), st.data())
def test_density_peaks(name, data):
    value = data.draw(CLUSTR[name], label=name)
    with pytest.raises(ValueError, match=name):
        density_peaks(torch.randn(1, 6, 2), [2], grid=(2, 3), **{name: value})


@given(NOT_POSITIVE | st.integers(7))
def test_numbers_of_clusters(value):
    with pytest.raises(ValueError, match='num_clusters'):
        density_peaks(torch.randn(1, 6, 2), [2, value])


@given(st.none() | st.tuples(st.integers(0, 9), st.integers(7, 9)))
def test_grids(value):
    with pytest.raises(ValueError, match='grid'):
        density_peaks(torch.randn(1, 6, 2), [2], grid=value, window=2)


@given(st.sampled_from([kmeans, kmedoids]), st.integers(0, 3), NOT_POSITIVE)
def test_kmeans(method, which, iters):
    good = [torch.randn(1, 6, 2), torch.tensor([[0, 1]]), torch.ones(1, 6), 2]
    wrong = [good[0][0], good[1][0], good[2][:, 1:], iters]
    names = ['x', 'init', 'weight', 'iters']
    case = [*good[:which], wrong[which], *good[which + 1 :]]
    with pytest.raises(ValueError, match=names[which]):
        method(*case)
