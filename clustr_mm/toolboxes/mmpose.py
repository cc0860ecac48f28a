"""MMPose: key points of persons."""

import numpy as np
from mmengine.config import Config
from mmengine.structures import InstanceData

from clustr_mm.dependencies import Package
from .toolbox import Reduced, Size, Toolbox

NUM_COCO_JOINTS = 17
CODEC = dict(input_size=(96, 128), heatmap_size=(24, 32))


class MMPose(Toolbox):
    scope = 'mmpose'
    package = Package('1.3.1', '2.0.0', 'mmpose')
    usual_size = (256, 192)
    takes_many_necks = False
    mixed_parts = ('backbone', 'neck')  # its accuracy goes through NumPy
    reduced = Reduced(
        'pose',
        'coco-wholebody/AP',
        num=40,
        size=256,
        batch=8,
        epochs=4,
        sizes=dict(
            TopdownAffine=dict(input_size=CODEC['input_size']),
            MSRAHeatmap=CODEC,
        ),
        options={
            'val_dataloader.dataset.bbox_file': None,
            'test_dataloader.dataset.bbox_file': None,
        },
    )

    def probe_size(self, cfg: Config) -> Size:
        codec = cfg.model.get('head', {}).get('decoder') or {}
        width_height = codec.get('input_size', self.usual_size[::-1])
        return tuple(width_height[::-1])

    def num_joints(self, head: dict) -> int:
        """How many key points a head finds, which each calls otherwise."""
        names = ('out_channels', 'num_joints', 'num_keypoints')
        told = (head[name] for name in names if name in head)
        return next(told, NUM_COCO_JOINTS)

    def _sample(self, cfg: Config, size: Size):
        from mmpose.structures import PoseDataSample

        width_height = np.array(size[::-1], np.float32)
        num_joints = self.num_joints(cfg.model.head)
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
