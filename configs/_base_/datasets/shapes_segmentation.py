# Generated scenes in ADE20K's layout:
#   python tools/make_shapes.py --task segmentation --out data/shapes
data_root = 'data/shapes'
crop_size = (128, 128)
# fmt: off
metainfo = dict(
    classes=('bricks', 'clouds', 'waves', 'ball', 'box', 'cone', 'ring',
             'star'),
    palette=[(140, 86, 75), (199, 222, 240), (31, 119, 180), (214, 39, 40),
             (255, 187, 60), (44, 160, 44), (148, 103, 189), (240, 228, 66)],
)
# fmt: on
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(
        type='RandomResize',
        scale=(160, 160),
        ratio_range=(0.8, 1.25),
        keep_ratio=True,
    ),
    dict(type='RandomCrop', crop_size=crop_size),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'
        ),
        metainfo=metainfo,
        reduce_zero_label=True,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=1,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation',
        ),
        metainfo=metainfo,
        reduce_zero_label=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
