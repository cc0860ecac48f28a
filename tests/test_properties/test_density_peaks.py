"""Density peaks by their definition, one token after the other."""

import contextlib
import math
from unittest import mock

import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from clustr_mm.tokens import density_peaks as module
from clustr_mm.tokens.density_peaks import density_peaks
from tests.test_properties.strategies import MODERATE, generators, tokens


@st.composite
def clusterings(draw, **kwargs):
    """Tokens and options of `density_peaks` that suit them."""
    x = draw(tokens(**kwargs))
    num_tokens = x.shape[1]
    height = draw(
        st.sampled_from(
            [n for n in range(1, num_tokens + 1) if num_tokens % n == 0]
        )
    )
    numbers = st.lists(st.integers(1, num_tokens), min_size=1, max_size=3)
    return x, {
        'num_clusters': draw(numbers),
        'k': draw(st.integers(1, 8)),
        'assign': draw(st.sampled_from(['parent', 'nearest'])),
        'grid': (height, num_tokens // height),
        'window': draw(st.none() | st.integers(1, 8)),
        'share': draw(st.just(1.0) | st.floats(0.01, 1)),
    }


@st.composite
def generic(draw):
    """Without ties, to which the order of tokens or a last bit matters.

    Of up to two neighbours, itself included, or in a window of two tokens, a
    pair would be equally dense.
    """
    x, options = draw(clusterings(kinds=('normal',), dtypes=(torch.float64,)))
    assume(x.shape[1] > 2)
    return x, {**options, 'k': options['k'] + 2, 'window': None}


@st.composite
def searches(draw):
    """A way to search: in tiles, in chunks, as on a device that nobody waits
    for, and as in an exported graph."""
    sizes = {
        '_TILE_SIZE': {'cpu': draw(st.sampled_from([1, 60, 2**20]))},
        '_EXPORTED_TILE_SIZE': draw(st.sampled_from([1, 2**24])),
        '_TILE_ROWS': draw(st.sampled_from([1, 7, 384])),
        '_CHUNK_SIZE': draw(st.sampled_from([3, 8, 64])),
        '_MOST_CHUNKS': draw(st.sampled_from([1, 4, 384])),
    }
    sizes['_TILE_SIZE']['cuda'] = 1
    exporting = draw(st.booleans())
    looks = not exporting and draw(st.booleans())
    return {
        **sizes,
        'is_exporting': lambda: exporting,
        'may_look': lambda x: looks,
    }


@contextlib.contextmanager
def searching(search):
    with mock.patch.multiple(module, **search):
        yield


def rounding(x):
    """Errors that squared distances of an image's tokens [N, C] may have."""
    eps, x = torch.finfo(x.dtype).eps, x.double()
    norms = (x - x.mean(0)).square().mean(-1)
    # The mean itself is rounded, too.
    return 100 * eps * (norms.max() + (eps * x.abs().max()).square())


def check_peaks(x, k, peaks, image=None):
    """Peaks of tokens [N, C] by equations 1 and 2, rounding aside."""
    margin = rounding(x if image is None else image)
    x = x.double()
    square = (x[:, None] - x).square().mean(-1)
    nearest = square.sort(1).values[:, :k]
    error = (peaks.log_density.double() + nearest.mean(1)).abs()
    assert (error <= margin).all()
    order = peaks.log_density.argsort(descending=True, stable=True).tolist()
    for place, i in enumerate(order):
        denser, parent = order[:place], int(peaks.parent[i])
        if denser:
            assert parent in denser
            expected = square[i, denser].min()
            assert square[i, parent] <= expected + margin
        else:
            assert parent == i
            expected = square[i].max()
        assert (peaks.delta[i].double().square() - expected).abs() <= margin


def peaks_of(x, k):
    """Bit by bit those of `density_peaks`, which computes no gradients."""
    with torch.no_grad():
        return module.find_peaks(module._centered(x), k)


def follow(parent, centers):
    """Labels of one image, step by step."""
    labels = []
    for token in range(len(parent)):
        while token not in centers:
            token = int(parent[token])
        labels.append(centers.index(token))
    return labels


def windows_of(grid, window):
    """The tokens of each window of a map."""

    def parts(size):
        count = math.ceil(size / window)
        bounds = [i * size // count for i in range(count + 1)]
        return [range(*pair) for pair in zip(bounds, bounds[1:])]

    return [
        [row * grid[1] + column for row in rows for column in columns]
        for rows in parts(grid[0])
        for columns in parts(grid[1])
    ]


@given(tokens(), st.integers(1, 8), searches())
def test_densities_deltas_and_parents(x, k, search):
    with searching(search):
        peaks = module.find_peaks(module._centered(x), k)
    for i, image in enumerate(x):
        check_peaks(image, k, module.Peaks(*(v[i] for v in peaks)))


@given(tokens(max_batch=1, max_tokens=200), searches())
def test_densities_deltas_and_parents_of_many_tokens(x, search):
    with searching(search):
        peaks = module.find_peaks(module._centered(x), 2)
    check_peaks(x[0], 2, module.Peaks(*(v[0] for v in peaks)))


@given(clusterings(), searches())
def test_windows_are_searched_each_by_itself(case, search):
    x, options = case
    grid, window = options['grid'], options['window'] or 3
    with searching(search):
        peaks, num_windows = module.find_peaks_in_windows(
            module._centered(x), options['k'], grid, window
        )
    windows = windows_of(grid, window)
    assert num_windows == len(windows)
    assert sorted(sum(windows, [])) == list(range(x.shape[1]))
    for i, image in enumerate(x):
        for some in windows:
            number = {token: place for place, token in enumerate(some)}
            log_density, delta, parent = (v[i, some] for v in peaks)
            parent = torch.tensor([number[p] for p in parent.tolist()])
            found = module.Peaks(log_density, delta, parent)
            # Rounding errors are those of the whole image.
            check_peaks(image[some], options['k'], found, image)


@given(clusterings())
def test_clusters_are_numbered_and_not_empty(case):
    x, options = case
    num_windows = (
        len(windows_of(options['grid'], options['window']))
        if options['window']
        else 1
    )
    found = density_peaks(x, **options)
    asked = [max(m, num_windows) for m in options['num_clusters']]
    assert [c.num_clusters for c in found] == asked
    for clusters in found:
        assert (clusters.mask is None) == (options['share'] == 1)
        for i, labels in enumerate(clusters.labels):
            exists = range(clusters.num_clusters)
            if clusters.mask is not None:
                exists = clusters.mask[i].nonzero()[:, 0].tolist()
                assert exists == list(range(len(exists)))
            assert set(labels.tolist()) == set(exists)


@given(clusterings())
def test_labels_follow_from_the_peaks(case):
    x, options = case
    options.update(assign='parent', window=None, share=1.0)
    peaks = peaks_of(x, options['k'])
    for clusters in density_peaks(x, **options):
        for i, labels in enumerate(clusters.labels):
            gamma = peaks.log_density[i] + peaks.delta[i].log()
            gamma[peaks.parent[i] == torch.arange(len(gamma))] = torch.inf
            order = gamma.argsort(descending=True, stable=True).tolist()
            centers = sorted(order[: clusters.num_clusters])
            assert labels.tolist() == follow(peaks.parent[i], centers)


@given(clusterings())
def test_no_cluster_crosses_windows(case):
    x, options = case
    options.update(assign='parent')
    window = options['window'] = options['window'] or 3
    windows = windows_of(options['grid'], window)
    for clusters in density_peaks(x, **options):
        for labels in clusters.labels:
            sets = [set(labels[some].tolist()) for some in windows]
            assert sum(map(len, sets)) == len(set.union(*sets))


@given(clusterings())
def test_a_window_of_everything_changes_nothing(case):
    x, options = case
    options['window'] = None
    whole = density_peaks(x, **options)
    options['window'] = max(options['grid'])
    for one, other in zip(whole, density_peaks(x, **options), strict=True):
        assert torch.equal(one.labels, other.labels)


@given(tokens(), generators(), searches())
def test_nearest_center(x, generator, search):
    num_tokens = x.shape[1]
    num_centers = int(
        torch.randint(1, num_tokens + 1, (), generator=generator)
    )
    noise = torch.rand(x.shape[:2], generator=generator)
    centers = noise.argsort(1)[:, :num_centers].sort(1).values
    with searching(search):
        labels = module.nearest_center(module._centered(x), centers)
    for image, chosen, found in zip(x, centers, labels, strict=True):
        offset = image.double()[:, None] - image[chosen].double()
        square = offset.square().mean(-1)
        excess = square.gather(1, found[:, None])[:, 0] - square.amin(1)
        assert (excess <= rounding(image)).all()
        assert found[chosen].tolist() == list(range(num_centers))


@given(clusterings())
def test_share_takes_the_fewest_centers_that_hold_it(case):
    x, options = case
    options.update(window=None, share=min(options['share'], 0.99))
    peaks = peaks_of(x, options['k'])
    for clusters in density_peaks(x, **options):
        m = clusters.num_clusters
        for i, mask in enumerate(clusters.mask):
            log_gamma = (peaks.log_density[i] + peaks.delta[i].log()).double()
            assume(log_gamma.isfinite().all())
            ranked = log_gamma.clone()
            ranked[peaks.parent[i] == torch.arange(len(ranked))] = torch.inf
            order = ranked.argsort(descending=True, stable=True)
            held = log_gamma[order[:m]].softmax(0).cumsum(0)
            count, share = int(mask.sum()), options['share']
            assert count == 1 or held[count - 2] < share + 1e-5
            assert count == m or held[count - 1] >= share - 1e-5


@given(clusterings())
def test_numbers_asked_for_together_or_alone(case):
    x, options = case
    numbers = options.pop('num_clusters')
    together = density_peaks(x, numbers, **options)
    for clusters, m in zip(together, numbers, strict=True):
        (alone,) = density_peaks(x, [m], **options)
        assert torch.equal(clusters.labels, alone.labels)


@given(clusterings())
def test_an_image_is_the_same_beside_others(case):
    """Bit by bit, ties and all, wherever it stands among as many others."""
    x, options = case
    options['share'] = 1.0
    turned = density_peaks(x.roll(1, 0), **options)
    for one, other in zip(density_peaks(x, **options), turned, strict=True):
        assert torch.equal(one.labels.roll(1, 0), other.labels)


@given(generic())
def test_an_image_is_the_same_alone(case):
    x, options = case
    together = density_peaks(x, **options)
    for i in range(x.shape[0]):
        alone = density_peaks(x[i : i + 1], **options)
        for one, other in zip(together, alone, strict=True):
            assert torch.equal(one.labels[i], other.labels[0])


@given(generic(), generators())
def test_the_order_of_tokens_is_of_no_account(case, generator):
    x, options = case
    order = torch.randperm(x.shape[1], generator=generator)
    shuffled = density_peaks(x[:, order], **options)
    for one, other in zip(density_peaks(x, **options), shuffled, strict=True):
        for labels, again in zip(one.labels[:, order], other.labels):
            pairs = set(zip(labels.tolist(), again.tolist(), strict=True))
            assert len(pairs) == len(set(labels.tolist()))


@given(
    tokens(kinds=('normal', 'ties', 'constant', 'blobs', 'offset')),
    st.integers(1, 8),
    st.integers(-30, 30),
)
def test_scale_changes_no_parent(x, k, power):
    """Powers of two are exact."""
    peaks = module.find_peaks(module._centered(x), k)
    scaled = module.find_peaks(module._centered(x * 2.0**power), k)
    assert torch.equal(peaks.parent, scaled.parent)
    assert torch.equal(peaks.delta * 2.0**power, scaled.delta)


@given(
    clusterings(kinds=MODERATE, dtypes=(torch.float16, torch.bfloat16)),
    st.booleans(),
)
def test_half_precision_is_compared_in_float32(case, autocast):
    x, options = case
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
        half = density_peaks(x, **options)
    for one, other in zip(half, density_peaks(x.float(), **options)):
        assert torch.equal(one.labels, other.labels)


@given(clusterings(dtypes=(torch.float32,)), generators())
def test_numbers_beyond_measure_still_give_clusters(case, generator):
    """Infinite, NaN and overflowing tokens, as of diverged weights."""
    x, options = case
    bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 1e-45])
    which = torch.randint(len(bad), x.shape, generator=generator)
    spoilt = torch.rand(x.shape, generator=generator) < 0.2
    for clusters in density_peaks(x.where(~spoilt, bad[which]), **options):
        for labels in clusters.labels:
            found, asked = set(labels.tolist()), clusters.num_clusters
            assert found <= set(range(asked))
            assert clusters.mask is not None or len(found) == asked


@given(tokens(max_batch=1), st.integers(1, 8))
def test_all_or_one(x, k):
    num_tokens = x.shape[1]
    every, one = density_peaks(x, [num_tokens, 1], k=k)
    assert every.labels[0].tolist() == list(range(num_tokens))
    assert not one.labels.any()


@given(clusterings())
def test_no_images(case):
    x, options = case
    for clusters in density_peaks(x[:0], **options):
        assert clusters.labels.shape == (0, x.shape[1])
