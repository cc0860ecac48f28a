"""What the property tests draw: tokens, clusters and images.

Hypothesis chooses shapes, kinds and a seed; the values come from torch, which
makes them a thousand times faster. A failure shrinks to few tokens of the
plainest kind that fails.
"""

import torch
from hypothesis import strategies as st

# Models this small lose by a second thread, badly on a busy machine.
torch.set_num_threads(1)


def _normal(shape, generator):
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _ties(shape, generator):
    """Few different values: equal distances, many identical tokens."""
    return torch.randint(3, shape, generator=generator).double()


def _constant(shape, generator):
    return _normal(shape, generator)[:, :1].repeat(1, shape[1], 1)


def _blobs(shape, generator):
    center = torch.randint(3, shape[:2], generator=generator)
    x = 10 * torch.eye(max(shape[2], 3), dtype=torch.float64)[center]
    return x[..., : shape[2]] + 1e-3 * _normal(shape, generator)


def _offset(shape, generator):
    """Far from the origin, where |a|^2 + |b|^2 - 2ab loses digits."""
    return 1000 + _normal(shape, generator)


def _outlier(shape, generator):
    x = _normal(shape, generator)
    x[:, -1] *= 1e4
    return x


def _huge(shape, generator):
    return 1e12 * _normal(shape, generator)


def _tiny(shape, generator):
    return 1e-12 * _normal(shape, generator)


KINDS = {
    'normal': _normal,
    'ties': _ties,
    'constant': _constant,
    'blobs': _blobs,
    'offset': _offset,
    'outlier': _outlier,
    'tiny': _tiny,
    'huge': _huge,
}
# A half-precision number holds these.
MODERATE = ('normal', 'ties', 'constant', 'blobs', 'offset')


def seeds():
    return st.integers(0, 2**32 - 1)


def generators():
    """Sources of whatever else a test needs, the same in each replay."""
    return seeds().map(lambda seed: torch.Generator().manual_seed(seed))


@st.composite
def tokens(
    draw,
    kinds=tuple(KINDS),
    dtypes=(torch.float64, torch.float32),
    max_batch=3,
    max_tokens=40,
    max_channels=8,
):
    """Tokens [B, N, C]."""
    shape = (
        draw(st.integers(1, max_batch)),
        draw(st.integers(1, max_tokens)),
        draw(st.integers(1, max_channels)),
    )
    kind = draw(st.sampled_from(kinds))
    dtype = draw(st.sampled_from(dtypes))
    return KINDS[kind](shape, draw(generators())).to(dtype)


@st.composite
def labelled(draw, **kwargs):
    """Tokens [B, N, C], the cluster [B, N] of each, and their number.

    Some clusters may be empty.
    """
    x = draw(tokens(**kwargs))
    num_clusters = draw(st.integers(1, 6))
    labels = torch.randint(
        num_clusters, x.shape[:2], generator=draw(generators())
    )
    return x, labels, num_clusters


@st.composite
def permutations(draw, batch, length):
    """An order [B, N] for each image."""
    noise = torch.rand(batch, length, generator=draw(generators()))
    return noise.argsort(1)


def image_sizes(max_side=40):
    """Heights and widths, extreme ones among them."""
    side = st.integers(1, max_side)
    return st.one_of(
        st.tuples(side, side),
        st.sampled_from([(1, 1), (1, 300), (300, 1), (3, 129)]),
    )


@st.composite
def images(draw, sizes=None, max_batch=2, dtype=torch.float32):
    """Images [B, 3, H, W]: noise, a single colour, bright or black ones."""
    size = draw(image_sizes() if sizes is None else sizes)
    batch = draw(st.integers(1, max_batch))
    img = torch.randn(batch, 3, *size, generator=draw(generators()))
    kind = draw(st.sampled_from(['noise', 'plain', 'black', 'bright']))
    if kind == 'plain':
        img = img[..., :1, :1].expand_as(img)
    img = img * {'black': 0, 'bright': 255}.get(kind, 1)
    return img.to(dtype)
