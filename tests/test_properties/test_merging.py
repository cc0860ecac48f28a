"""Sums, means and softmaxes by cluster, in loops and float64."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from clustr_mm.tokens.compiling import ranking
from clustr_mm.tokens.merging import (
    cluster_mean,
    cluster_softmax_means,
    cluster_sum,
    number_clusters,
)
from tests.test_properties.strategies import MODERATE, generators, labelled

ALL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def members(labels, cluster):
    return (labels == cluster).nonzero()[:, 0]


@given(labelled(kinds=MODERATE, dtypes=ALL))
def test_sums(case):
    x, labels, num_clusters = case
    found = cluster_sum(x, labels, num_clusters)
    assert found.dtype == x.dtype
    eps = torch.finfo(x.dtype).eps
    for i, image in enumerate(x.double()):
        for c in range(num_clusters):
            mine = image[members(labels[i], c)]
            error = (found[i, c].double() - mine.sum(0)).abs()
            assert (error <= len(mine) * eps * mine.abs().sum(0)).all()


@given(labelled(), st.integers(-20, 20))
def test_softmaxes(case, power):
    x, labels, num_clusters = case
    score = x[..., 0] * 2.0**power
    ones = torch.eye(x.shape[1], dtype=x.dtype).expand(len(x), -1, -1)
    mean = cluster_softmax_means(
        ones, score, number_clusters([labels], [num_clusters])
    )[0]
    found = mean.sum(1)
    for i, image in enumerate(score.double()):
        for c in range(num_clusters):
            mine = members(labels[i], c)
            assert not mean[i, c].index_fill(0, mine, 0).any()
            # A softmax of numbers with a rounding error.
            eps = 10 * torch.finfo(x.dtype).eps
            expected = image[mine].softmax(0)
            torch.testing.assert_close(
                found[i, mine].double(), expected, atol=eps, rtol=1e-4
            )
            assert not len(mine) or abs(found[i, mine].sum() - 1) < 1e-5


@given(labelled(), generators(), st.integers(-80, 20), st.booleans())
def test_means(case, generator, power, some):
    x, labels, num_clusters = case
    weight = torch.rand(x.shape[:2], generator=generator).to(x.dtype)
    weight = weight * (weight > 0.5) if some else weight
    found = cluster_mean(x, labels, num_clusters, weight * 2.0**power)
    for i, image in enumerate(x.double()):
        for c in range(num_clusters):
            mine = members(labels[i], c)
            total = weight[i, mine].double().sum()
            expected = (weight[i, mine, None] * image[mine]).sum(0)
            if total > 0:
                size = image[mine].abs().max()
                error = (found[i, c] - expected / total).abs()
                assert (error <= 1e-5 * size).all()
            else:
                assert not found[i, c].any()


@given(labelled(kinds=MODERATE, dtypes=(torch.float16, torch.bfloat16)))
def test_means_in_half_precision(case):
    """Of equal weights, however small a number can be."""
    x, labels, num_clusters = case
    x = x.clamp(-4, 4)
    mean = cluster_mean(x.float(), labels, num_clusters)
    least = torch.full_like(x[..., 0], 2**-14)
    found = cluster_mean(x, labels, num_clusters, least).float()
    torch.testing.assert_close(found, mean, atol=0.2, rtol=0.1)


@given(labelled(dtypes=(torch.float64,), kinds=('normal', 'constant')))
def test_gradients(case):
    x, labels, num_clusters = case
    x = x[:1, :6, :2].clone().requires_grad_()
    labels = labels[:1, :6]

    def merged(x):
        weight = x[..., 0].exp()
        return (
            cluster_sum(x, labels, num_clusters),
            cluster_mean(x, labels, num_clusters, weight),
            *cluster_softmax_means(
                x, x[..., 0], number_clusters([labels], [num_clusters])
            ),
        )

    assert torch.autograd.gradcheck(merged, (x,))


@given(labelled(dtypes=ALL, kinds=MODERATE))
def test_ranking(case):
    score = case[0][..., 0]
    for numbers, order in zip(score.tolist(), ranking(score), strict=True):
        places = range(len(numbers))
        expected = sorted(places, key=lambda i: (-numbers[i], i))
        assert order.tolist() == expected


@given(labelled())
def test_no_images(case):
    x, labels, num_clusters = case
    x, labels = x[:0], labels[:0]
    shape = (0, num_clusters, x.shape[2])
    assert cluster_sum(x, labels, num_clusters).shape == shape
    assert cluster_mean(x, labels, num_clusters).shape == shape
    numbers = [num_clusters]
    (mean,) = cluster_softmax_means(
        x, x[..., 0], number_clusters([labels], numbers)
    )
    assert mean.shape == shape
