from pathlib import Path

import numpy as np
import pytest
import torch

import clustr_mm.backbones  # noqa: F401
from clustr_mm.analysis.references import (
    looped_kmedoids,
    straightforward,
    textbook_density_peaks,
)
from clustr_mm.registry import MODELS
from clustr_mm.tokens.density_peaks import density_peaks
from clustr_mm.tokens.kmeans import kmedoids
from tests.tiny_models import TRAINED_ARCH

GOLDEN = Path(__file__).parents[1] / 'data' / 'clustering_0.npz'


def test_golden():
    with np.load(GOLDEN) as file:
        golden = {key: torch.from_numpy(file[key]) for key in file}

    def both(key):
        return torch.stack([golden[f'image{i}/{key}'] for i in range(2)])

    labels = textbook_density_peaks(golden['x'], (24, 6))
    assert torch.equal(labels[0], both('labels_24'))
    assert torch.equal(labels[1], both('labels_6'))
    for weight, prefix in (None, ''), (golden['weight'], 'weighted_'):
        labels, medoids = looped_kmedoids(golden['x'], both('init'), weight)
        assert torch.equal(labels, both(f'{prefix}kmedoids_labels'))
        assert torch.equal(medoids, both(f'{prefix}kmedoids_indices'))


def test_same_as_ours():
    x, weight = torch.randn(2, 196, 32), torch.rand(2, 196)
    for clusters, labels in zip(
        density_peaks(x, (49, 9)), textbook_density_peaks(x, (49, 9))
    ):
        assert torch.equal(clusters.labels, labels)
    init = weight.topk(60).indices
    for ours, looped in zip(
        kmedoids(x, init, weight), looped_kmedoids(x, init, weight)
    ):
        assert torch.equal(ours, looped)


@pytest.mark.parametrize(
    'backbone',
    [
        dict(type='ThinViT'),
        dict(type='EViT', keep=0.6),
        dict(type='EViT', keep=0.6, fuse=False),
        dict(type='DynamicViT', keep=0.6),
        dict(type='TokenPoolingDeiT', keep=[14, 9, 5, 0], weighted=True),
        dict(type='TokenPoolingDeiT', keep=[14, 9, 5, 0], weighted=False),
        dict(type='HVT', num_stages=2),
    ],
)
@torch.no_grad()
def test_plain_vits(backbone):
    model = MODELS.build(dict(backbone, arch=TRAINED_ARCH, img_size=64)).eval()
    for param in model.parameters():
        # Away from the small initial weights, with which all is alike.
        torch.nn.init.normal_(param, std=0.3)
    img = torch.randn(3, 3, 64, 64)
    torch.testing.assert_close(
        straightforward(model)(img), model(img)[-1], rtol=1e-4, atol=1e-4
    )
