import pytest
import torch

from clustr_mm.tokens import merging as module
from clustr_mm.tokens.merging import (
    cluster_mean,
    cluster_softmax_means,
    cluster_sum,
    number_clusters,
)


@pytest.fixture(autouse=True, params=['by index', 'by matrix'])
def _way(request, monkeypatch):
    """A device has a matrix where there are few clusters."""
    by_matrix = request.param == 'by matrix'
    monkeypatch.setattr(module, '_has_matrix', lambda *_: by_matrix)


LABELS = torch.tensor([[0, 2, 0, 2, 2], [1, 1, 1, 1, 1]])


def softmax(score, labels, num_clusters):
    """Weights [B, N]: what becomes of unit vectors."""
    ones = torch.eye(score.shape[1], dtype=score.dtype).expand(
        len(score), -1, -1
    )
    mean = cluster_softmax_means(
        ones, score, number_clusters([labels], [num_clusters])
    )[0]
    return mean.sum(1)


def test_sum_by_hand():
    x = torch.tensor([[1.0, 2, 3, 4, 5], [1, 1, 1, 1, 1]])[..., None]
    expected = torch.tensor([[4.0, 0, 11], [0, 5, 0]])
    assert torch.equal(cluster_sum(x, LABELS, 3)[..., 0], expected)


def test_softmax_by_hand():
    score = torch.randn(2, 5, dtype=torch.float64)
    weight = softmax(score, LABELS, 3)
    for row, labels, found in zip(score, LABELS, weight, strict=True):
        for label in labels.unique():
            members = labels == label
            torch.testing.assert_close(found[members], row[members].softmax(0))


def test_softmax_with_scores_far_apart():
    """A low score among high ones is still a whole cluster by itself."""
    score = torch.tensor([[0.0, 500, 1000]])
    labels = torch.tensor([[0, 1, 1]])
    weight = softmax(score, labels, 2)
    torch.testing.assert_close(weight, torch.tensor([[1.0, 0, 1]]))


def test_mean_of_empty_and_weightless_clusters_is_zero():
    x = torch.randn(1, 3, 4)
    labels = torch.tensor([[0, 0, 1]])
    weight = torch.tensor([[1.0, 3, 0]])
    mean = cluster_mean(x, labels, 3, weight)
    torch.testing.assert_close(mean[0, 0], (x[0, 0] + 3 * x[0, 1]) / 4)
    assert not mean[0, 1:].any()


def test_instead_of_the_mean_of_nothing():
    x, other = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
    labels = torch.tensor([[0, 0, 1]])
    weight = torch.tensor([[1.0, 3, 0]])
    mean = cluster_mean(x, labels, 3, weight, other)
    torch.testing.assert_close(mean[0, 0], (x[0, 0] + 3 * x[0, 1]) / 4)
    assert torch.equal(mean[0, 1:], other[0, 1:])


def test_no_cluster_is_a_mean_of_nothing():
    x, score = torch.randn(1, 3, 4), torch.randn(1, 3).requires_grad_()
    labels = torch.tensor([[0, 0, 2]])
    (means,) = cluster_softmax_means(x, score, number_clusters([labels], [4]))
    assert not means[0, [1, 3]].any()
    torch.testing.assert_close(means[0, 2], x[0, 2])
    means.sum().backward()
    assert score.grad.isfinite().all()


def test_gradients():
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    score = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)

    def merge(x, score):
        (mean,) = cluster_softmax_means(
            x, score, number_clusters([LABELS], [3])
        )
        return mean, cluster_sum(x, LABELS, 3)

    assert torch.autograd.gradcheck(merge, (x, score))


def test_several_clusterings_are_each_by_itself():
    x, score = torch.randn(2, 5, 3), torch.randn(2, 5)
    others = torch.tensor([[3, 0, 0, 1, 1], [0, 0, 2, 3, 3]])
    both = cluster_softmax_means(
        x, score, number_clusters([LABELS, others], [3, 4])
    )
    (first,) = cluster_softmax_means(x, score, number_clusters([LABELS], [3]))
    (second,) = cluster_softmax_means(x, score, number_clusters([others], [4]))
    torch.testing.assert_close(both, [first, second])


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_sums_in_half_precision_do_not_stop_growing(dtype):
    """Of ones, bfloat16 counts to 256, and float16 to 2048."""
    ones = torch.ones(1, 4096, 1, dtype=dtype)
    labels = torch.zeros(1, 4096, dtype=torch.long)
    assert cluster_sum(ones, labels, 1).item() == 4096
    assert cluster_mean(ones, labels, 1).item() == 1
    (mean,) = cluster_softmax_means(
        ones, ones[..., 0], number_clusters([labels], [1])
    )
    assert mean.item() == 1
