import mmcv
import numpy as np
import pytest
import torch

from clustr_mm.analysis.clustering_options import (
    OPTIONS,
    adjusted_rand,
    agreement,
    compare_options,
    read_images,
)
from clustr_mm.analysis.measure import Setting
from clustr_mm.errors import UserError
from tests.tiny_models import clustr, clustr_arch

DEPTHS = (2, 1, 1, 1)


def test_adjusted_rand_by_hand():
    """The example of Hubert and Arabie's index in scikit-learn's manual."""
    a, b = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 0, 1, 1])
    assert adjusted_rand(a, b) == pytest.approx(0.571, abs=5e-4)
    assert adjusted_rand(a, 5 - a) == 1.0
    assert adjusted_rand(torch.zeros(4).long(), torch.zeros(4).long()) == 1.0


def test_chance_is_zero():
    torch.manual_seed(0)
    a, b = torch.randint(10, (2, 20000))
    assert adjusted_rand(a, b) == pytest.approx(0, abs=0.01)


def test_agreement_with_exact():
    model = clustr(DEPTHS).eval()
    found = agreement(model, torch.randn(2, 3, 256, 256))
    stages = {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)}
    assert all(set(rows) == stages for rows in found.values())
    assert set(found['exact'].values()) == {1.0}
    # The second block of the first stage clusters other tokens, the other
    # stages have one block; their maps fit into a window.
    assert found['reuse'][0, 0] < 1
    assert found['reuse'][1, 0] == 1
    assert found['window'][0, 0] < 1
    assert found['window'][1, 0] == 1
    assert found['nearest'][0, 0] < 1


def test_tables():
    setting = Setting(rounds=1)
    times, labels = compare_options(
        torch.randn(1, 3, 64, 64), setting, clustr_arch(DEPTHS)
    )
    assert [row[0] for row in times.rows] == list(OPTIONS)
    assert [row[0] for row in labels.rows] == list(OPTIONS)
    assert set(labels.rows[0][1:]) == {'1.00'}


def test_read_images(tmp_path):
    mmcv.imwrite(
        np.full((8, 9, 3), (0, 0, 255), np.uint8), f'{tmp_path}/a.png'
    )
    (image,) = read_images([f'{tmp_path}/a.png'], (4, 6))
    assert image.shape == (3, 4, 6)
    assert image[0].mean() == pytest.approx((255 - 123.675) / 58.395)
    (tmp_path / 'b.png').write_text('no image')
    for name in ('b.png', 'missing.png'):
        with pytest.raises(UserError, match=f'{name} is no image'):
            read_images([f'{tmp_path}/{name}'], (4, 6))
