"""MMDetection: boxes and masks of objects."""

import math
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict

from clustr_mm.configs import type_of
from clustr_mm.dependencies import Package
from .toolbox import Reduced, Size, Toolbox


class MMDetection(Toolbox):
    scope = 'mmdet'
    package = Package('3.3.0', '4.0.0', 'mmdet', 'onedl-mmdetection')
    usual_size = (800, 1344)  # 1333 x 800, padded to whole strides
    mixed_parts = ('backbone', 'neck')  # not mmcv's NMS and RoIAlign
    counts_on_strides = True  # of anchors and of regions
    has_large_images = True
    reduced = Reduced(
        'detection',
        'coco/bbox_mAP',
        num=30,
        size=128,
        batch=2,
        epochs=2,
        lr=2e-4,  # RetinaNet's loss leaps at 1e-3
        sizes=dict(Resize=dict(scale=(128, 128))),
        options={
            'model.train_cfg.rpn_proposal.nms_pre': 200,
            'model.train_cfg.rpn_proposal.max_per_img': 100,
            'model.train_cfg.rcnn.sampler.num': 32,
            'model.test_cfg.rpn.max_per_img': 50,
            'model.test_cfg.rcnn.max_per_img': 20,
            # So early, nothing reaches the usual threshold.
            'model.test_cfg.rcnn.score_thr': 0.0,
            'model.test_cfg.score_thr': 0.0,
        },
        names_classes=True,
        counts_classes=True,
    )

    def probe_size(self, cfg: Config) -> Size:
        if cfg.model.get('as_two_stage'):
            return 256, 256  # it begins with its 900 best places
        return 128, 128  # the fewer anchors, the fewer regions to look at

    def _size_after(self, transform: dict) -> Size | None:
        # The longer and the shorter side, in any order.
        scale = transform.get('scale')
        if isinstance(scale, (list, tuple)):
            height, width = sorted(scale)
            return _padded(height), _padded(width)
        return super()._size_after(transform)

    def _sample(self, cfg: Config, size: Size):
        from mmdet.structures import DetDataSample
        from mmengine.structures import InstanceData

        nothing = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=int)
        )
        known = {}
        if type_of(cfg.model) == 'FastRCNN':  # it is told where to look
            whole = torch.tensor([[0.0, 0, *size[::-1]]])
            known['proposals'] = InstanceData(bboxes=whole)
        return DetDataSample(
            **known,
            gt_instances=nothing,  # QueryInst looks whether there are any
            metainfo=dict(
                img_shape=size,
                ori_shape=size,
                pad_shape=size,
                batch_input_shape=size,
                scale_factor=(1.0, 1.0),
            ),
        )

    def draw_predictions(
        self, cfg: Config, hook: ConfigDict, folder: str | None
    ) -> None:
        hook.draw = True
        if folder is not None:
            # It is joined to the work dir, unless absolute.
            hook.test_out_dir = str(Path(folder).absolute())

    def dump_predictions(self, cfg: Config, out: str) -> None:
        self._dump_pickle(cfg, out, 'DumpDetResults')


def _padded(side: int) -> int:
    return math.ceil(side / 32) * 32
