import torch

from clustr_mm.tokens.merging import (
    cluster_mean,
    cluster_softmax,
    cluster_sum,
)

LABELS = torch.tensor([[0, 2, 0, 2, 2], [1, 1, 1, 1, 1]])


def test_sum_by_hand():
    x = torch.tensor([[1.0, 2, 3, 4, 5], [1, 1, 1, 1, 1]])[..., None]
    expected = torch.tensor([[4.0, 0, 11], [0, 5, 0]])
    assert torch.equal(cluster_sum(x, LABELS, 3)[..., 0], expected)


def test_softmax_by_hand():
    score = torch.randn(2, 5, dtype=torch.float64)
    weight = cluster_softmax(score, LABELS, 3)
    for row, labels, found in zip(score, LABELS, weight, strict=True):
        for label in labels.unique():
            members = labels == label
            torch.testing.assert_close(found[members], row[members].softmax(0))


def test_softmax_with_scores_far_apart():
    """A low score among high ones is still a whole cluster by itself."""
    score = torch.tensor([[0.0, 500, 1000]])
    labels = torch.tensor([[0, 1, 1]])
    weight = cluster_softmax(score, labels, 2)
    torch.testing.assert_close(weight, torch.tensor([[1.0, 0, 1]]))


def test_mean_of_empty_and_weightless_clusters_is_zero():
    x = torch.randn(1, 3, 4)
    labels = torch.tensor([[0, 0, 1]])
    weight = torch.tensor([[1.0, 3, 0]])
    mean = cluster_mean(x, labels, 3, weight)
    torch.testing.assert_close(mean[0, 0], (x[0, 0] + 3 * x[0, 1]) / 4)
    assert not mean[0, 1:].any()


def test_gradients():
    x = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    score = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)

    def merge(x, score):
        weight = cluster_softmax(score, LABELS, 3)
        return cluster_sum(x * weight[..., None], LABELS, 3)

    assert torch.autograd.gradcheck(merge, (x, score))
