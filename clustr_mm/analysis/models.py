"""Models of configs of the four toolboxes, and inputs that they take."""

import math
from collections.abc import Callable

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import init_default_scope
from torch import Tensor, nn

from clustr_mm import config_files
from clustr_mm.dependencies import PACKAGES, require
from clustr_mm.errors import building
from clustr_mm.registry import MODELS

# Height and width where a config does not tell.
_USUAL_SIZES = {
    'mmpretrain': (224, 224),
    'mmseg': (512, 512),
    'mmdet': (800, 1344),  # 1333 x 800, padded to whole strides
    'mmpose': (256, 192),
}


def read_config(path: str, options: dict | None = None) -> Config:
    """Read a config of any toolbox."""
    cfg = config_files.read(path, options)
    scope = cfg.get('default_scope', 'mmengine')
    if scope in PACKAGES:
        require(scope)
    return cfg


def build_model(cfg: Config) -> nn.Module:
    """Build a config's model in eval mode, with random weights."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    with building(f'the model of {config_files.describe(cfg)}'):
        model = revert_sync_batchnorm(MODELS.build(cfg.model))
    model.eval()
    return model


def usual_size(cfg: Config) -> tuple[int, int]:
    """Height and width of the images that a config is made for."""
    codec = cfg.get('codec')
    if isinstance(codec, dict) and 'input_size' in codec:
        width, height = codec['input_size']
        return height, width
    size = cfg.model.get('data_preprocessor', {}).get('size')
    if size is not None:
        return tuple(size)
    scope = cfg.get('default_scope')
    for transform in _test_pipeline(cfg):
        if transform['type'] == 'CenterCrop':
            size = transform['crop_size']
            return (size, size) if isinstance(size, int) else tuple(size)
        # Of a detector: the longer and the shorter side, in any order.
        scale = transform.get('scale')
        if scope == 'mmdet' and isinstance(scale, (list, tuple)):
            height, width = sorted(scale)
            return _whole_strides(height), _whole_strides(width)
    return _USUAL_SIZES.get(scope, (224, 224))


def _test_pipeline(cfg: Config) -> list[dict]:
    dataset = (cfg.get('test_dataloader') or {}).get('dataset', {})
    return dataset.get('pipeline') or cfg.get('test_pipeline', [])


def _whole_strides(side: int) -> int:
    return math.ceil(side / 32) * 32


def example_inputs(
    cfg: Config, batch: int, size: tuple[int, int]
) -> dict[str, Tensor | list]:
    """What a config's model takes: random images and what it must know.

    Made for modes 'tensor' and 'predict' of a model's forward method.
    """
    images = torch.randn(batch, 3, *size)
    make = _SAMPLES.get(cfg.get('default_scope'))
    samples = make and [make(cfg, size) for _ in range(batch)]
    return dict(inputs=images, data_samples=samples)


def _detection_sample(cfg: Config, size: tuple[int, int]):
    from mmdet.structures import DetDataSample

    return DetDataSample(
        metainfo=dict(
            img_shape=size,
            ori_shape=size,
            pad_shape=size,
            batch_input_shape=size,
            scale_factor=(1.0, 1.0),
        )
    )


def _pose_sample(cfg: Config, size: tuple[int, int]):
    from mmengine.structures import InstanceData
    from mmpose.structures import PoseDataSample

    width_height = np.array(size[::-1], np.float32)
    head = cfg.model.head  # of heat maps, or of coordinates
    num_joints = head.get('out_channels') or head.num_joints
    person = InstanceData(
        bboxes=np.array([[0, 0, *width_height]], np.float32),
        bbox_scores=np.ones(1, np.float32),
        bbox_centers=width_height[None] / 2,
        bbox_scales=width_height[None],
    )
    return PoseDataSample(
        gt_instances=person,
        metainfo=dict(
            img_shape=size,
            ori_shape=size,
            input_size=size[::-1],
            input_center=width_height / 2,
            input_scale=width_height,
            # Which key point mirrors which; for the cost, all the same.
            flip_indices=list(range(num_joints)),
        ),
    )


_SAMPLES: dict[str, Callable] = {
    'mmdet': _detection_sample,
    'mmpose': _pose_sample,
}
