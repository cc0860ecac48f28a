"""K-Means and K-Medoids by their definition, in loops and float64."""

from unittest import mock

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from clustr_mm.tokens import kmeans as module
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from tests.test_properties.strategies import MODERATE, generators, tokens

GENERIC = {'kinds': ('normal',), 'dtypes': (torch.float64,)}
METHODS = st.sampled_from([kmeans, kmedoids])


@st.composite
def clusterings(draw, **kwargs):
    """Tokens, distinct ones to start from, weights and iterations."""
    x = draw(tokens(**kwargs))
    generator = draw(generators())
    order = torch.rand(x.shape[:2], generator=generator).argsort(1)
    init = order[:, : draw(st.integers(1, x.shape[1]))]
    weight = torch.rand(x.shape[:2], generator=generator, dtype=torch.float64)
    weight = draw(
        st.sampled_from(
            [
                None,
                weight,
                weight * (weight > 0.5),  # some tokens count for nothing
                torch.zeros_like(weight),
            ]
        )
    )
    weight = None if weight is None else weight.to(x.dtype)
    return x, init, weight, draw(st.integers(1, 5))


def weighted(x, weight):
    return torch.ones_like(x[..., 0]) if weight is None else weight


def loss(x, labels, centers, weight):
    """Equation 13 of each image."""
    centers = centers.double()
    assigned = torch.stack([c[one] for c, one in zip(centers, labels)])
    square = (x.double() - assigned).square().sum(-1)
    return (weighted(x, weight).double() * square).sum(1)


def by_definition(method, x, init, weight, iters):
    """Labels and centers, or medoids, of one image [N, C]."""
    chosen, centers = init.tolist(), x[init]
    for _ in range(iters):
        square = (x[:, None] - centers).square().sum(-1)
        labels = square.argmin(1)
        for k in range(len(chosen)):
            mine = (labels == k).nonzero()[:, 0]
            total = weight[mine].sum()
            if not total > 0:
                continue
            if method is kmeans:
                centers[k] = (weight[mine, None] * x[mine]).sum(0) / total
            else:
                costs = [
                    (weight[mine] * (x[mine] - x[i]).square().sum(-1)).sum()
                    for i in mine
                ]
                chosen[k] = int(mine[int(torch.stack(costs).argmin())])
        if method is kmedoids:
            centers = x[chosen]
    return labels, centers


@given(METHODS, clusterings(**GENERIC), st.booleans())
def test_by_definition(method, case, table):
    x, init, weight, iters = case
    with mock.patch.multiple(
        module, _TABLE=1024 if table else 0, _TILE=1024 if table else 1
    ):
        found = method(x, init, weight, iters)
    for i, image in enumerate(x):
        labels, centers = by_definition(
            method, image, init[i], weighted(x, weight)[i], iters
        )
        result = found[1][i] if method is kmeans else image[found[1][i]]
        assert torch.equal(found[0][i], labels)
        torch.testing.assert_close(result, centers)


@given(METHODS, clusterings())
def test_every_iteration_is_an_improvement(method, case):
    """Or none is possible; rounding aside."""
    x, init, weight, iters = case

    def after(iters):
        labels, centers = method(x, init, weight, iters)
        if method is kmedoids:
            centers = torch.stack([i[c] for i, c in zip(x, centers)])
        assert ((labels >= 0) & (labels < init.shape[1])).all()
        assert centers.isfinite().all()
        return loss(x, labels, centers, weight)

    size = x.double().square().sum(-1).amax(1)
    margin = 1e3 * torch.finfo(x.dtype).eps * size * x.shape[1]
    assert (after(iters + 1) <= after(iters) + margin).all()


@given(clusterings())
def test_first_labels_are_the_nearest_tokens(case):
    x, init, weight, _ = case
    labels, _ = kmeans(x, init, weight, iters=1)
    for image, start, found in zip(x.double(), init, labels, strict=True):
        square = (image[:, None] - image[start]).square().sum(-1)
        excess = square.gather(1, found[:, None])[:, 0] - square.amin(1)
        size = image.square().sum(-1).max()
        assert (excess <= 100 * torch.finfo(x.dtype).eps * size).all()


@given(clusterings(kinds=('normal', 'ties', 'constant', 'blobs', 'outlier')))
def test_medoids_are_of_their_clusters(case):
    x, init, weight, iters = case
    labels, medoids = kmedoids(x, init, weight, iters)
    total = torch.zeros(init.shape, dtype=x.dtype)
    total.scatter_add_(1, labels, weighted(x, weight))
    own = labels.gather(1, medoids) == torch.arange(init.shape[1])
    assert own[total > 0].all()


@given(METHODS, clusterings(), st.integers(-30, 30))
def test_only_the_proportion_of_weights_counts(method, case, power):
    x, init, weight, iters = case
    weight = weighted(x, weight)
    one = method(x, init, weight, iters)
    other = method(x, init, weight * 2.0**power, iters)
    assert torch.equal(one[0], other[0])
    assert torch.equal(one[1], other[1])


@given(METHODS, clusterings(**GENERIC))
def test_an_image_is_the_same_alone(method, case):
    x, init, weight, iters = case
    labels, centers = method(x, init, weight, iters)
    for i in range(x.shape[0]):
        some = slice(i, i + 1)
        mine = None if weight is None else weight[some]
        alone = method(x[some], init[some], mine, iters)
        assert torch.equal(labels[some], alone[0])
        torch.testing.assert_close(centers[some], alone[1])


@given(METHODS, clusterings(**GENERIC), generators())
def test_the_order_of_tokens_is_of_no_account(method, case, generator):
    x, init, weight, iters = case
    # Of a pair that weighs the same, either is as good a medoid.
    assume(method is kmeans or weight is not None)
    order = torch.randperm(x.shape[1], generator=generator)
    mine = None if weight is None else weight[:, order]
    labels, _ = method(x, init, weight, iters)
    moved = method(x[:, order], order.argsort()[init], mine, iters)[0]
    assert torch.equal(labels[:, order], moved)


@given(METHODS, clusterings(kinds=('constant', 'ties')))
def test_of_equal_centers_the_first_takes_all(method, case):
    x, init, weight, _ = case
    labels, _ = method(x, init, weight, 1)
    for image, start, found in zip(x, init, labels, strict=True):
        rows = image[start].tolist()
        for row, label in zip(image.tolist(), found.tolist(), strict=True):
            if row in rows:
                assert label == rows.index(row)


@given(
    METHODS,
    clusterings(kinds=MODERATE, dtypes=(torch.float16, torch.bfloat16)),
)
def test_half_precision_is_compared_in_float32(method, case):
    x, init, weight, iters = case
    mine = None if weight is None else weight.float()
    half = method(x, init, weight, iters)
    full = method(x.float(), init, mine, iters)
    assert torch.equal(half[0], full[0])
    assert torch.equal(half[1], full[1].to(half[1].dtype))


@given(clusterings(kinds=MODERATE))
def test_gradients_are_finite(case):
    x, init, weight, iters = case
    leaves = [x.requires_grad_()]
    if weight is not None:
        leaves.append(weight.requires_grad_())
    centers = kmeans(x, init, weight, iters)[1]
    centers.square().sum().backward()
    for leaf in leaves:
        assert leaf.grad is None or leaf.grad.isfinite().all()


@given(METHODS, clusterings())
def test_no_images(method, case):
    x, init, weight, iters = case
    mine = None if weight is None else weight[:0]
    labels, centers = method(x[:0], init[:0], mine, iters)
    assert labels.shape == (0, x.shape[1])
    assert centers.shape[:2] == (0, init.shape[1])
