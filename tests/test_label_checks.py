"""Label maps beside their pictures, as pipelines load them."""

import cv2
import numpy as np
import pytest
from mmengine import dataset
from mmengine.registry import init_default_scope

from clustr_mm.errors import UserError
from clustr_mm.runs.label_checks import Compose

pytest.importorskip('mmseg')

LOAD = dict(type='LoadImageFromFile')
LABELS = dict(type='LoadAnnotations')
RESIZE = dict(type='Resize', scale=(64, 64), keep_ratio=True)


@pytest.fixture(autouse=True)
def _scope():
    init_default_scope('mmseg')


@pytest.fixture
def sample(tmp_path):
    """A picture 16 high and 24 wide, and its map."""
    paths = [str(tmp_path / name) for name in ('picture.png', 'map.png')]
    cv2.imwrite(paths[0], np.zeros((16, 24, 3), np.uint8))
    cv2.imwrite(paths[1], np.full((16, 24), 3, np.uint8))
    return dict(
        img_path=paths[0],
        seg_map_path=paths[1],
        seg_fields=[],
        label_map=None,
        reduce_zero_label=False,
    )


@pytest.mark.parametrize(
    ('transforms', 'size'),
    [
        ([LOAD, LABELS, RESIZE], (43, 64)),
        # To test, MMSegmentation's configs resize the picture alone.
        ([LOAD, RESIZE, LABELS], (16, 24)),
    ],
)
def test_maps_of_resized_pictures(sample, transforms, size):
    data = Compose(dataset.Compose(transforms))(sample)
    assert data['img'].shape[:2] == (43, 64)
    assert data['gt_seg_map'].shape == size


@pytest.mark.parametrize(
    'transforms', [[LOAD, LABELS], [LOAD, RESIZE, LABELS]]
)
def test_maps_of_other_pictures(sample, transforms):
    cv2.imwrite(sample['seg_map_path'], np.full((43, 64), 3, np.uint8))
    with pytest.raises(UserError, match=r'map\.png is of shape \(43, 64\)'):
        Compose(dataset.Compose(transforms))(sample)
