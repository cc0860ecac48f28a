"""RoIAlign cuts the values out of a map that are there.

It takes any map for one that lies in memory in the order of its dimensions.
What it cuts out of a transposed one, or of what a convolution makes of that,
is noise, without a word.
"""

import pytest
import torch
from mmcv.ops import RoIAlign
from mmdet.models.necks import FPN

from clustr_mm.necks import SimpleFPN
from tests.tiny_models import CASES, build, clustr, images

BOXES = torch.tensor([[0, 1.0, 2, 20, 28], [1, 5, 3, 31, 19]])


def assert_cut_out(fmaps, size=32):
    for fmap in fmaps:
        align = RoIAlign(3, fmap.shape[-1] / size, aligned=True)
        want = align(fmap.clone(memory_format=torch.contiguous_format), BOXES)
        assert torch.equal(align(fmap, BOXES), want)


def test_maps_of_clustr():
    fmaps = clustr()(images(2, 32, 32))
    assert_cut_out(fmaps)
    assert_cut_out(FPN([8, 16, 24, 32], 8, 5)(fmaps))


@pytest.mark.parametrize('name', CASES)
def test_maps_of_plain_vits(name):
    fmaps = build(name, out_type='featmap')(images(2, 32, 32))
    assert_cut_out(fmaps)
    assert_cut_out(SimpleFPN(48, 8, 4, (1, 2, 4, 8), num_outs=5)(fmaps))
