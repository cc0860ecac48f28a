from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from clustr_mm.tokens import kmeans as module
from clustr_mm.tokens import merging
from clustr_mm.tokens.kmeans import kmeans, kmedoids
from tests.rounding import OtherRounding
from tests.torch_features import one_graph


@pytest.fixture(autouse=True, params=['by index', 'by matrix'])
def _way(request, monkeypatch):
    """How clusters are summed up; a device has a matrix."""
    by_matrix = request.param == 'by matrix'
    monkeypatch.setattr(merging, '_has_matrix', lambda *_: by_matrix)


GOLDEN = Path(__file__).parents[1] / 'data' / 'clustering_0.npz'


@pytest.fixture(scope='module')
def golden():
    with np.load(GOLDEN) as file:
        return {key: torch.from_numpy(file[key]) for key in file}


def both(golden, key):
    return torch.stack([golden[f'image{i}/{key}'] for i in range(2)])


def brute_force(x, init, weight, iters, medoids):
    """The appendix's equations for one image, cluster by cluster."""
    x, centers = x.double(), x[init].double()
    index = init.clone()
    for _ in range(iters):
        labels = (x[:, None] - centers).square().sum(-1).argmin(1)
        for j in range(len(init)):
            members = (labels == j).nonzero()[:, 0]
            w = weight[members].double()
            if w.sum() == 0:
                continue
            if medoids:
                pairs = x[members][:, None] - x[members]
                cost = (pairs.square().sum(-1) * w).sum(1)
                index[j] = members[cost.argmin()]
                centers[j] = x[index[j]]
            else:
                centers[j] = (x[members] * w[:, None]).sum(0) / w.sum()
    return labels, index if medoids else centers


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
@pytest.mark.parametrize('weighted', [False, True])
def test_golden(golden, weighted, dtype):
    x, init = golden['x'].to(dtype), both(golden, 'init')
    weight = golden['weight'] if weighted else None
    prefix = 'weighted_' if weighted else ''

    labels, centers = kmeans(x, init, weight)
    assert torch.equal(labels, both(golden, prefix + 'kmeans_labels'))
    expected = both(golden, prefix + 'kmeans_centres').to(dtype)
    torch.testing.assert_close(centers, expected)

    labels, medoids = kmedoids(x, init, weight)
    assert torch.equal(labels, both(golden, prefix + 'kmedoids_labels'))
    assert torch.equal(medoids, both(golden, prefix + 'kmedoids_indices'))


@pytest.mark.parametrize('iters', [1, 2, 3])
@pytest.mark.parametrize(
    ('num_tokens', 'num_clusters'), [(1, 1), (30, 1), (30, 29), (40, 9)]
)
def test_brute_force(num_tokens, num_clusters, iters):
    torch.manual_seed(0)
    x = torch.randn(3, num_tokens, 7, dtype=torch.float64) + 5
    weight = torch.rand(3, num_tokens, dtype=torch.float64)
    init = torch.rand(3, num_tokens).topk(num_clusters).indices
    for function in kmeans, kmedoids:
        labels, centers = function(x, init, weight, iters)
        for i in range(3):
            expected = brute_force(
                x[i], init[i], weight[i], iters, function is kmedoids
            )
            assert torch.equal(labels[i], expected[0])
            torch.testing.assert_close(centers[i], expected[1])


class Seen(TorchDispatchMode):
    """Counts operators, and the elements of the largest tensor."""

    operators = elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.operators += 1
        if isinstance(out, torch.Tensor):
            self.elements = max(self.elements, out.numel())
        return out


@pytest.mark.parametrize(
    ('function', 'tokens', 'clusters', 'least', 'most'),
    [
        # All distances of an image in a table, up to a number of tokens.
        # Two bounds of each.
        (kmedoids, 1024, 5, 1024**2, 2 * 1024**2),
        (kmedoids, 1025, 5, 0, 1025 * 100),
        # Else, distances to centers in pieces of 16 MB.
        (kmeans, 60_000, 100, 2**21, 2**22),
    ],
)
def test_memory(monkeypatch, function, tokens, clusters, least, most):
    monkeypatch.setattr(merging, '_has_matrix', lambda *_: False)
    x, init = torch.randn(1, tokens, 2), torch.arange(clusters)[None]
    with Seen() as seen:
        function(x, init, iters=1)
    assert least <= seen.elements <= most


@pytest.mark.parametrize('function', [kmeans, kmedoids])
def test_five_iterations_unless_told(function):
    """As Token Pooling has it by default; here the sixth would matter."""
    torch.manual_seed(0)
    x, init = torch.randn(1, 600, 2).double(), torch.arange(20)[None]
    labels = [
        brute_force(x[0], init[0], torch.ones(600), n, function is kmedoids)[0]
        for n in (4, 5, 6)
    ]
    assert not torch.equal(labels[0], labels[1])
    assert not torch.equal(labels[1], labels[2])
    assert torch.equal(function(x, init)[0][0], labels[1])


@pytest.mark.parametrize('function', [kmeans, kmedoids])
def test_ends_when_nothing_changes(monkeypatch, function):
    torch.manual_seed(0)
    x, init = torch.randn(3, 60, 4), torch.arange(10).expand(3, -1)
    with Seen() as ended:
        early = function(x, init, iters=40)
    monkeypatch.setattr(module, 'may_look', lambda x: False)
    with Seen() as went_on:
        late = function(x, init, iters=40)
    assert all(map(torch.equal, early, late))
    assert ended.operators < went_on.operators / 2


def test_a_cluster_for_each_token():
    """With as many clusters as tokens, each token is its own cluster."""
    x = torch.randn(2, 50, 8)
    init = torch.stack([torch.randperm(50), torch.randperm(50)])
    labels, centers = kmeans(x, init)
    assert torch.equal(init.gather(1, labels), torch.arange(50).expand(2, -1))
    torch.testing.assert_close(
        centers.gather(1, labels[..., None].expand_as(x)), x
    )
    labels, medoids = kmedoids(x, init)
    assert torch.equal(init.gather(1, labels), torch.arange(50).expand(2, -1))
    assert torch.equal(medoids, init)


@pytest.mark.parametrize('table', [0, 1024])
def test_equal_tokens(monkeypatch, table):
    """Of equal centers the first takes all, and the others stay empty."""
    monkeypatch.setattr(module, '_TABLE', table)
    torch.manual_seed(0)
    x = torch.randn(1, 12, 33).repeat(1, 17, 1)
    init = torch.arange(24)[None]
    labels, centers = kmeans(x, init)
    assert torch.equal(labels[0], torch.arange(12).repeat(17))
    torch.testing.assert_close(centers[0], x[0, :24])
    labels, medoids = kmedoids(x, init)
    assert torch.equal(labels[0], torch.arange(12).repeat(17))
    assert torch.equal(medoids, init)


@pytest.mark.parametrize('table', [0, 1024])
@pytest.mark.parametrize('where', ['center', 'far', 'beside an outlier'])
@pytest.mark.parametrize('channels', [3, 33, 500])
def test_no_tie_hangs_on_rounding(monkeypatch, channels, where, table):
    monkeypatch.setattr(module, '_TABLE', table)
    for seed in range(5):
        torch.manual_seed(seed)
        x = torch.randn(1, 12, channels)
        if where == 'far':
            x += 30
        elif where == 'beside an outlier':
            x[:, 5] *= 100
        x = x.repeat(1, 17, 1)
        init = torch.arange(24)[None]
        with OtherRounding():
            products = x @ x.mT
            assert not torch.equal(products[:, :12], products[:, 12:24])
            found, _ = kmeans(x, init)
            labels, medoids = kmedoids(x, init)
        assert torch.equal(found[0], torch.arange(12).repeat(17))
        assert torch.equal(labels, found)
        assert torch.equal(medoids, init)


def test_an_outlier_blurs_no_distances():
    """It is far from everybody; who is near to whom it does not matter."""
    x, init = torch.randn(1, 400, 3), torch.arange(50)[None]
    x[0, 20] = 300
    for function in kmeans, kmedoids:
        labels, _ = function(x, init, iters=1)
        expected, _ = brute_force(x[0], init[0], torch.ones(400), 1, False)
        assert torch.equal(labels[0], expected)


def test_labels_are_of_the_tokens_that_a_center_was_made_of():
    """The second token is nearest to the first center in the end."""
    x = torch.tensor([[[0.0], [1.0], [5.5], [10.0]]])
    init = torch.tensor([[0, 1]])
    labels, centers = kmeans(x, init, iters=1)
    assert labels.tolist() == [[0, 1, 1, 1]]
    assert centers.tolist() == [[[0.0], [5.5]]]
    labels, medoids = kmedoids(x, init, iters=1)
    assert labels.tolist() == [[0, 1, 1, 1]]
    assert medoids.tolist() == [[0, 2]]
    for function in kmeans, kmedoids:
        assert function(x, init, iters=2)[0].tolist() == [[0, 0, 1, 1]]


def test_two_members_are_equally_good_medoids():
    torch.manual_seed(0)
    pairs = torch.randn(500, 1, 48) + 0.1 * torch.randn(500, 2, 48)
    for init in torch.zeros(500, 1).long(), torch.ones(500, 1).long():
        assert kmedoids(pairs, init)[1].eq(0).all()


def test_weightless_cluster_keeps_its_center():
    x = torch.tensor([[[0.0], [1.0], [10.0], [11.0], [13.0]]])
    weight = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0]])
    init = torch.tensor([[0, 4]])
    labels, centers = kmeans(x, init, weight)
    assert labels.tolist() == [[0, 0, 1, 1, 1]]
    torch.testing.assert_close(centers, torch.tensor([[[0.5], [13.0]]]))
    assert kmedoids(x, init, weight)[1].tolist() == [[0, 4]]


def test_tiles_give_the_same(monkeypatch):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 300, 16), torch.rand(2, 300)
    init = torch.rand(2, 300).topk(40).indices
    expected = kmeans(x, init, weight), kmedoids(x, init, weight)
    monkeypatch.setattr(module, '_TABLE', 0)
    for tile in 1, 2000, 2**24:
        monkeypatch.setattr(module, '_TILE', tile)
        for got, want in zip(
            (kmeans(x, init, weight), kmedoids(x, init, weight)),
            expected,
            strict=True,
        ):
            assert torch.equal(got[0], want[0])
            torch.testing.assert_close(got[1], want[1])


def test_image_ignores_its_neighbours():
    torch.manual_seed(0)
    x, weight = torch.randn(5, 196, 64), torch.rand(5, 196)
    init = weight.topk(60).indices
    for function in kmeans, kmedoids:
        for got, want in zip(
            function(x[3:4], init[3:4], weight[3:4]),
            function(x, init, weight),
            strict=True,
        ):
            assert torch.equal(got, want[3:4])
    x[0] = torch.nan
    labels, centers = kmeans(x, init, weight)
    assert centers[0].isnan().all()
    assert centers[1:].isfinite().all()
    for index in kmedoids(x, init, weight):
        assert index.ge(0).all()
        assert index.lt(196).all()


def test_gradient_of_centers():
    torch.manual_seed(0)
    x = torch.randn(1, 9, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(1, 9, dtype=torch.float64, requires_grad=True)
    init = torch.tensor([[0, 2, 4]])

    def centers(x, weight):
        labels, centers = kmeans(x, init, weight, iters=2)
        assert not labels.requires_grad
        return centers

    assert torch.autograd.gradcheck(centers, (x, weight))
    assert not any(out.requires_grad for out in kmedoids(x, init, weight))


def test_medoids_keep_nothing_for_a_backward_pass():
    """Which would be every iteration's distances; they are indices."""
    x, saved = torch.randn(1, 30, 3, requires_grad=True), []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, id):
        x.square()
        assert len(saved) == 1
        kmedoids(x, torch.arange(5)[None])
    assert len(saved) == 1


def test_gradient_with_an_empty_cluster():
    x = torch.randn(1, 9, 3, requires_grad=True)
    weight = torch.rand(1, 9, requires_grad=True)
    labels, centers = kmeans(x, torch.tensor([[0, 0]]), weight, iters=1)
    assert labels.eq(0).all()
    torch.testing.assert_close(centers[:, 1], x[:, 0])
    for gradient in torch.autograd.grad(centers.sum(), (x, weight)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_low_precision(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 60, 32).to(dtype), torch.rand(2, 60)
    init = weight.topk(20).indices
    for function in kmeans, kmedoids:
        expected = function(x.float(), init, weight)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            labels, centers = function(x, init, weight)
            plain = function(x.float(), init, weight)
        assert torch.equal(labels, expected[0])
        assert torch.equal(centers, expected[1].to(centers.dtype))
        for got, want in zip(plain, expected, strict=True):
            assert torch.equal(got, want)
    assert kmeans(x, init, weight)[1].dtype == dtype


@one_graph
def test_compiles():
    x, weight = torch.randn(2, 30, 8), torch.rand(2, 30)
    init = weight.topk(10).indices
    for function in kmeans, kmedoids:
        compiled = torch.compile(function, fullgraph=True, backend='eager')
        for got, want in zip(
            compiled(x, init, weight), function(x, init, weight), strict=True
        ):
            assert torch.equal(got, want)


def test_medoids_of_pairs_are_the_first(monkeypatch):
    """Either is as good, however far from the others the pair is."""
    monkeypatch.setattr(module, '_TABLE', 0)
    pairs = torch.randn(50, 1, 4) + 1e-2 * torch.randn(50, 2, 4)
    first = torch.arange(0, 100, 2)[None]
    _, medoids = kmedoids(pairs.view(1, 100, 4), first + 1, iters=1)
    assert torch.equal(medoids, first)


@pytest.mark.parametrize('function', [kmeans, kmedoids])
@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'x': torch.zeros(4, 5)}, r'x must be tokens'),
        ({'init': torch.zeros(2, 0).long()}, r'init .* K >= 1.*\[2, 0\]'),
        ({'init': torch.zeros(1, 3).long()}, r'init .*\[2, K\]'),
        ({'weight': torch.ones(2, 6)}, r'weight must be \[2, 9\]'),
        ({'iters': 0}, r'iters must be at least 1'),
    ],
)
def test_refuses(function, change, message):
    kwargs = {'x': torch.zeros(2, 9, 3), 'init': torch.zeros(2, 3).long()}
    with pytest.raises(ValueError, match=message):
        function(**{**kwargs, **change})
