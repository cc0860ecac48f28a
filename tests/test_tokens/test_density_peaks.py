"""Against brute-force answers (tests/data/clustering_0.npz, float64)."""

from pathlib import Path

import numpy as np
import pytest
import torch

from clustr_mm.tokens import density_peaks as module
from clustr_mm.tokens.density_peaks import density_peaks
from clustr_mm.tokens.merging import cluster_softmax_means, number_clusters

GOLDEN = np.load(Path(__file__).parents[1] / 'data' / 'clustering_0.npz')
IMAGES = range(2)


def golden(image, key):
    return torch.from_numpy(GOLDEN[f'image{image}/{key}'])


def tokens(dtype=torch.float64):
    return torch.from_numpy(GOLDEN['x']).to(dtype)


@pytest.fixture(params=['whole', 'tiles', 'device', 'device, tiles'])
def _tiling(request, monkeypatch):
    """Once with all rows in a tile, once in uneven tiles and chunks.

    And both as on a device, where no size may depend on the data.
    """
    if 'device' in request.param:
        monkeypatch.setattr(module, 'may_look', lambda x: False)
    if 'tiles' in request.param:
        monkeypatch.setattr(module, '_TILE_SIZE', {'cpu': 1, 'cuda': 1})
        monkeypatch.setattr(module, '_TILE_ROWS', 20)
        monkeypatch.setattr(module, '_CHUNK_SIZE', 10)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
@pytest.mark.usefixtures('_tiling')
class TestGolden:
    def test_peaks(self, dtype):
        peaks = module.find_peaks(module._centered(tokens(dtype)), k=5)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        for i in IMAGES:
            assert torch.equal(peaks.parent[i], golden(i, 'parent'))
            for key in ('log_density', 'delta', 'log_gamma'):
                found = getattr(peaks, key)[i].double()
                torch.testing.assert_close(
                    found, golden(i, key), atol=tolerance, rtol=tolerance
                )

    @pytest.mark.parametrize('assign', ['parent', 'nearest'])
    def test_labels(self, dtype, assign):
        prefix = '' if assign == 'parent' else 'nearest_'
        found = density_peaks(tokens(dtype), [24, 6], assign=assign)
        for clusters, m in zip(found, (24, 6), strict=True):
            assert clusters.num_clusters == m
            assert clusters.mask is None
            for i in IMAGES:
                expected = golden(i, f'{prefix}labels_{m}')
                assert torch.equal(clusters.labels[i], expected)

    def test_merged(self, dtype):
        x = tokens(dtype)
        score = torch.from_numpy(GOLDEN['score']).to(dtype)
        labels, numbers, _ = zip(*density_peaks(x, [24, 6]), strict=True)
        found = cluster_softmax_means(
            x, score, number_clusters(labels, numbers)
        )
        for merged, m in zip(found, numbers, strict=True):
            for i in IMAGES:
                torch.testing.assert_close(
                    merged[i].double(),
                    golden(i, f'merged_{m}'),
                    atol=1e-5,
                    rtol=1e-5,
                )


def brute_force(x, num_clusters, k=5):
    """Labels of one image [N, C], straight from equations 1 and 2."""
    n, channels = x.shape
    distance = torch.cdist(
        x, x, compute_mode='donot_use_mm_for_euclid_dist'
    ) / (channels**0.5)
    nearest = distance.topk(min(k, n), largest=False).values
    log_density = -nearest.square().mean(-1)
    parent = torch.arange(n)
    delta = torch.zeros(n, dtype=x.dtype)
    rows, spread = distance.tolist(), (-log_density).tolist()
    for i in range(n):
        denser = [j for j in range(n) if (spread[j], j) < (spread[i], i)]
        if denser:
            delta[i], parent[i] = min((rows[i][j], j) for j in denser)
        else:
            delta[i] = max(rows[i])
            root = i
    log_gamma = log_density + delta.log()
    log_gamma[root] = torch.inf
    centers = log_gamma.argsort(descending=True, stable=True)[:num_clusters]
    number = {int(c): m for m, c in enumerate(centers.sort().values)}
    labels = torch.zeros(n, dtype=torch.long)
    for i in range(n):
        j = i
        while j not in number:
            j = int(parent[j])
        labels[i] = number[j]
    return labels


@pytest.mark.parametrize('n', [1, 2, 4, 63, 65, 131])
@pytest.mark.usefixtures('_tiling')
def test_brute_force_at_any_size(n):
    torch.manual_seed(n)
    x = torch.randn(3, n, 6, dtype=torch.float64)
    numbers = sorted({1, (n + 1) // 2, n})
    for clusters, m in zip(density_peaks(x, numbers), numbers, strict=True):
        for i in range(3):
            assert torch.equal(clusters.labels[i], brute_force(x[i], m))


def test_clustered_blobs_come_out():
    """Well separated blobs of equal size are the clusters."""
    blob = torch.arange(8).repeat_interleave(40)
    x = 50 * torch.eye(8)[blob] + torch.randn(2, 320, 8)
    (clusters,) = density_peaks(x, [8])
    for labels in clusters.labels:
        pairs = set(zip(blob.tolist(), labels.tolist(), strict=True))
        assert len(pairs) == 8


def test_identical_tokens_are_one_cluster():
    """Ties in density must not leave tokens without a parent."""
    x = torch.randn(1, 4, 16).repeat_interleave(30, 1)
    (clusters,) = density_peaks(x, [4])
    groups = clusters.labels[0].view(4, 30)
    assert (groups == groups[:, :1]).all()
    assert len(set(groups[:, 0].tolist())) == 4


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
def test_copies_have_no_distance(dtype):
    """In spite of |a|^2 + |b|^2 - 2ab, which rounding leaves above 0."""
    x = torch.randn(1, 9, 64, dtype=dtype).repeat_interleave(7, 1)
    peaks = module.find_peaks(module._centered(x), 5)
    assert not peaks.log_density.any()
    delta, parent = peaks.delta.view(9, 7), peaks.parent.view(9, 7)
    assert (delta[:, 0] > 0).all()
    assert not delta[:, 1:].any()
    assert torch.equal(
        parent[:, 1:], torch.arange(0, 63, 7)[:, None].expand(9, 6)
    )


@pytest.mark.parametrize('n', [60, 330])
def test_more_clusters_than_distinct_tokens(n):
    """Copies are chosen, and followed, in the order of their indices."""
    x = torch.randn(2, 12, 6, dtype=torch.float64)
    x = x[:, torch.randint(12, (n,))]
    for clusters, m in zip(density_peaks(x, [12, 40]), (12, 40), strict=True):
        for image, labels in zip(x, clusters.labels, strict=True):
            assert torch.equal(labels, brute_force(image, m))


def test_same_whatever_the_neighbours_and_the_run():
    x = torch.randn(4, 500, 32)
    x[1:, ::2] = x[1:, :1]  # needs a second search for many more tokens
    first, again = density_peaks(x, [50]), density_peaks(x, [50])
    alone = density_peaks(x[:1].repeat(4, 1, 1), [50])
    assert torch.equal(first[0].labels, again[0].labels)
    assert torch.equal(first[0].labels[0], alone[0].labels[0])


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32])
@pytest.mark.parametrize('shape', [(2, 23, 5), (3, 39, 7), (3, 31, 1)])
def test_same_wherever_an_image_lies(shape, dtype):
    """Two neighbours are equally dense, if rounding lets them be."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(shape, generator=generator, dtype=dtype)
        turned = module.find_peaks(module._centered(x.roll(1, 0)), 2)
        for one, other in zip(
            module.find_peaks(module._centered(x), 2), turned, strict=True
        ):
            assert torch.equal(one.roll(1, 0), other)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_float32_under_autocast(dtype):
    x = torch.randn(2, 300, 32)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        (mixed,) = density_peaks(x, [30])
    assert torch.equal(mixed.labels, density_peaks(x, [30])[0].labels)
    x = x.to(dtype)
    (half,) = density_peaks(x, [30])
    assert torch.equal(half.labels, density_peaks(x.float(), [30])[0].labels)


@pytest.mark.usefixtures('_tiling')
@pytest.mark.parametrize('n', [30, 64, 330, 1300])
@pytest.mark.parametrize('k', [1, 5])
def test_smallest_of_a_row(n, k):
    square = torch.rand(2, 3, -(-n // module._CHUNK_SIZE) * module._CHUNK_SIZE)
    square[..., n:] = torch.inf
    expected = square.sort(-1)
    values, places = module._smallest(square.clone(), k)
    assert torch.equal(values, expected.values[..., :k])
    assert torch.equal(places, expected.indices[..., :k])


@pytest.mark.parametrize('n', [30, 64, 71, 330, 1300])
@pytest.mark.parametrize('k', [1, 5])
def test_least_of_a_row_in_chunks_of_chunks(n, k, monkeypatch):
    monkeypatch.setattr(module, '_CHUNK_SIZE', 10)
    monkeypatch.setattr(module, '_MOST_CHUNKS', 12)
    size = module._chunk_size(n)
    assert size == {30: 10, 64: 8, 71: 10, 330: 40, 1300: 160}[n]
    square = torch.rand(2, 3, -(-n // size) * size)
    square[..., n:] = torch.inf
    values = module._least(square, k, size)
    expected = square.sort(-1).values[..., :k]
    assert torch.equal(values.sort(-1).values, expected)


class TestWindow:
    def test_one_window_is_exact(self):
        x = torch.randn(2, 30 * 20, 16)
        (exact,) = density_peaks(x, [40])
        (windowed,) = density_peaks(x, [40], grid=(30, 20), window=30)
        assert torch.equal(exact.labels, windowed.labels)

    @pytest.mark.parametrize('grid', [(56, 40), (17, 23), (1, 50), (9, 8)])
    def test_search_stays_within_windows(self, grid):
        window, n = 8, grid[0] * grid[1]
        x = torch.randn(2, n, 16)
        m = max(n // 8, 40)
        (found,) = density_peaks(x, [m], grid=grid, window=window)
        assert found.num_clusters == m
        y, x_ = torch.arange(n) // grid[1], torch.arange(n) % grid[1]
        for labels in found.labels:
            assert set(labels.tolist()) == set(range(m))
            for number in range(m):
                members = labels == number
                assert y[members].max() - y[members].min() < window
                assert x_[members].max() - x_[members].min() < window

    def test_windows_are_images_of_their_own(self):
        left, right = torch.randn(2, 1, 10, 10, 16)
        peaks = [
            module.find_peaks(module._centered(w.flatten(1, 2)), 5)
            for w in (left, right)
        ]
        x = module._centered(torch.cat([left, right], 2).flatten(1, 2))
        found, num_windows = module.find_peaks_in_windows(x, 5, (10, 20), 10)
        assert num_windows == 2
        for i, expected in enumerate(peaks):
            columns = slice(10 * i, 10 * i + 10)
            gamma = found.log_gamma.view(10, 20)[:, columns]
            torch.testing.assert_close(
                gamma.flatten(), expected.log_gamma[0], atol=1e-4, rtol=1e-4
            )

    def test_never_fewer_clusters_than_windows(self):
        (found,) = density_peaks(
            torch.randn(1, 64, 4), [1], grid=(8, 8), window=4
        )
        assert found.num_clusters == 4
        assert set(found.labels[0].tolist()) == {0, 1, 2, 3}


class TestShare:
    def test_whole_share_is_the_fixed_number(self):
        x = torch.randn(2, 300, 16)
        (fixed,) = density_peaks(x, [30])
        (nearly,) = density_peaks(x, [30], share=1 - 1e-9)
        assert nearly.mask.all()
        assert torch.equal(fixed.labels, nearly.labels)

    def test_content_decides(self):
        """A picture with little in it takes fewer clusters."""
        blob = torch.arange(3).repeat_interleave(100)
        plain = 20 * torch.eye(16)[blob] + 0.01 * torch.randn(300, 16)
        x = torch.stack([plain, torch.randn(300, 16)])
        (found,) = density_peaks(x, [30], share=0.9)
        few, many = found.mask.sum(1).tolist()
        assert few == 3
        assert many > 10
        for labels, mask in zip(found.labels, found.mask, strict=True):
            assert set(labels.tolist()) == set(range(int(mask.sum())))

    def test_share_of_decision_values(self):
        x = torch.randn(1, 200, 16)
        peaks = module.find_peaks(module._centered(x), 5)
        gamma = peaks.log_gamma[0].exp().sort(descending=True).values[:20]
        held = gamma.cumsum(0) / gamma.sum()
        (found,) = density_peaks(x, [20], share=0.5)
        assert found.mask.sum() == int((held < 0.5).sum()) + 1


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(num_clusters=[0]), 'num_clusters must be in 1..9'),
        (dict(num_clusters=[10]), 'num_clusters must be in 1..9'),
        (dict(k=0), 'k must be'),
        (dict(assign='closest'), "'parent' or 'nearest'"),
        (dict(share=0), 'share must be'),
        (dict(window=0, grid=(3, 3)), 'window must be'),
        (dict(window=2), 'grid must be'),
        (dict(window=2, grid=(2, 3)), 'grid must be'),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        density_peaks(torch.randn(1, 9, 4), **{'num_clusters': [3], **options})


def test_nan_does_no_harm():
    x = torch.randn(2, 100, 8)
    x[0, 3] = torch.nan
    for assign in ('parent', 'nearest'):
        (found,) = density_peaks(x, [10], assign=assign)
        assert found.labels.min() >= 0
        assert found.labels.max() < 10
        (alone,) = density_peaks(x[1:], [10], assign=assign)
        assert torch.equal(found.labels[1], alone.labels[0])


@pytest.mark.parametrize('num_tokens', [100, 2000])
def test_no_images(num_tokens):
    """Few tokens, and so many that they are searched in chunks."""
    x = torch.randn(0, num_tokens, 8)
    (clusters,) = density_peaks(x, [num_tokens // 16])
    assert clusters.labels.shape == (0, num_tokens)
