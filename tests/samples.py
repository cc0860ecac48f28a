"""A batch of made-up data for each toolbox's models, as loaders give it."""

import numpy as np
import torch
from mmengine.dataset import pseudo_collate

from clustr_mm.configs import type_of, walk
from clustr_mm.toolboxes import toolbox_of


def batch(scope, cfg, size=(64, 64), num=2):
    """What a model of the toolbox takes; ``size`` is (height, width)."""
    return {
        'mmpretrain': classification,
        'mmseg': segmentation,
        'mmdet': detection,
        'mmpose': pose,
    }[scope](cfg, size, num)


def image(size):
    return torch.randint(0, 256, (3, *size), dtype=torch.uint8)


def classification(cfg, size, num):
    from mmpretrain.structures import DataSample

    # Without a head there are no labels.
    num_classes = cfg.model.get('head', {}).get('num_classes', 1)
    labels = torch.randint(num_classes, (num,)).tolist()
    return dict(
        inputs=torch.stack([image(size) for _ in range(num)]),
        data_samples=[DataSample().set_gt_label(i) for i in labels],
    )


def segmentation(cfg, size, num):
    from mmengine.structures import PixelData
    from mmseg.structures import SegDataSample

    heads = cfg.model.decode_head
    head = heads[-1] if isinstance(heads, list) else heads
    num_classes = head.get('num_classes', 2)
    meta = dict(img_shape=size, ori_shape=size, pad_shape=size)
    samples = []
    for _ in range(num):
        sample = SegDataSample(metainfo=meta)
        labels = torch.randint(num_classes, (1, *size))
        sample.gt_sem_seg = PixelData(data=labels)
        sample.gt_edge_map = PixelData(data=labels % 2)
        sample.gt_depth_map = PixelData(data=torch.rand(1, *size))
        samples.append(sample)
    return dict(inputs=[image(size) for _ in range(num)], data_samples=samples)


def detection(cfg, size, num):
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData, PixelData

    height, width = size
    meta = dict(
        img_shape=size,
        ori_shape=size,
        scale_factor=(1.0, 1.0),
        border=(0, height, 0, width),  # CenterNet asks for it
    )
    counts = [part.get('num_classes') for _, part in walk(cfg.model)]
    num_classes = min([num, *filter(None, counts)])
    # HTC's part for semantics is told the classes at its own size.
    is_coarse = 'semantic_head' in cfg.model.get('roi_head', {})
    samples = []
    for i in range(num):
        box = [width // 8, height // 8, width // 2 + i, height // 2 + i]
        mask = np.zeros((1, height, width), np.uint8)
        mask[0, box[1] : box[3], box[0] : box[2]] = 1
        sample = DetDataSample(metainfo=dict(meta, img_id=i))
        sample.gt_instances = InstanceData(
            bboxes=torch.tensor([box], dtype=torch.float32),
            labels=torch.tensor([i % num_classes]),
            masks=BitmapMasks(mask, height, width),
        )
        if type_of(cfg.model) == 'FastRCNN':
            sample.proposals = InstanceData(bboxes=sample.gt_instances.bboxes)
        sample.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=int)
        )
        classes = torch.from_numpy(mask).long()
        classes = classes[:, ::8, ::8] if is_coarse else classes
        sample.gt_sem_seg = PixelData(sem_seg=classes)
        samples.append(sample)
    return dict(inputs=[image(size) for _ in range(num)], data_samples=samples)


def pose(cfg, size, num):
    from mmengine.structures import InstanceData, PixelData
    from mmpose.structures import PoseDataSample

    head = cfg.model.head
    joints = head.get('out_channels') or head.num_joints
    stride = 4
    if 'heatmap_size' in head.get('decoder', {}):
        stride = head.decoder.input_size[0] // head.decoder.heatmap_size[0]
    heatmap = (joints, size[0] // stride, size[1] // stride)
    meta = dict(
        img_shape=size,
        input_size=size[::-1],
        input_center=np.array(size[::-1]) / 2,
        input_scale=np.array(size[::-1], dtype=float),
        flip_indices=list(range(joints)),
    )
    samples = []
    for _ in range(num):
        sample = PoseDataSample(metainfo=meta)
        sample.gt_instances = InstanceData(
            bboxes=np.array([[0, 0, *size[::-1]]], np.float32),
            bbox_scores=np.ones(1, np.float32),
        )
        sample.gt_instance_labels = InstanceData(
            keypoint_weights=torch.ones(1, joints)
        )
        sample.gt_fields = PixelData(heatmaps=torch.rand(heatmap))
        samples.append(sample)
    return dict(inputs=[image(size) for _ in range(num)], data_samples=samples)


def encoded_pose(cfg, num=2):
    """As the config's own codec encodes key points, at the size it expects."""
    from mmengine.registry import TRANSFORMS

    toolbox = toolbox_of(cfg)
    height, width = toolbox.probe_size(cfg)
    steps = cfg.train_dataloader.dataset.pipeline
    kinds = [type_of(step) for step in steps]
    if 'GenerateTarget' not in kinds:
        raise ValueError('its pipeline makes no targets to train with')
    first = kinds.index('GenerateTarget')
    if type_of(cfg.codec) == 'DecoupledHeatmap':  # it wants boxes' corners
        first = kinds.index('BottomupRandomAffine')
    steps = [TRANSFORMS.build(step) for step in steps[first:]]
    joints = toolbox.num_joints(cfg.model.head)
    rng = np.random.default_rng(0)
    packed = []
    for i in range(num):
        keypoints = rng.random((1, joints, 2), np.float32) * (width, height)
        result = dict(
            img=rng.integers(0, 256, (height, width, 3), np.uint8),
            img_shape=(height, width),
            ori_shape=(height, width),
            id=i,
            img_id=i,
            img_path='',
            category_id=np.ones(1, int),
            area=np.full(1, width * height, np.float32),
            bbox=np.array([[0, 0, width, height]], np.float32),
            bbox_score=np.ones(1, np.float32),
            bbox_scale=np.array([[width, height]], np.float32),
            keypoints=keypoints.astype(np.float32),
            transformed_keypoints=keypoints.astype(np.float32),
            keypoints_visible=np.ones((1, joints), np.float32),
            dataset_keypoint_weights=np.ones(joints, np.float32),
            input_size=(width, height),
            input_center=np.array([width, height]) / 2,
            input_scale=np.array([width, height], float),
            flip_indices=list(range(joints)),
        )
        for step in steps:
            result = step(result)
        packed.append(result)
    return pseudo_collate(packed)
