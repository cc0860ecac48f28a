# Garments on photographs, labelled pixel by pixel, as tools/prepare_study.py
# leaves them.
data_root = 'data/study/garments_128'
image_size = (128, 128)
# fmt: off
metainfo = dict(
    classes=('photograph', 'shirt', 'trouser', 'pullover', 'dress', 'coat',
             'sandal', 'blouse', 'sneaker', 'bag', 'boot'),
    palette=[(40, 40, 40), (214, 39, 40), (31, 119, 180), (255, 187, 60),
             (44, 160, 44), (148, 103, 189), (140, 86, 75), (227, 119, 194),
             (127, 127, 127), (188, 189, 34), (23, 190, 207)],
)
# fmt: on
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        img_suffix='.png',
        data_prefix=dict(img_path='images/train', seg_map_path='labels/train'),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        img_suffix='.png',
        data_prefix=dict(img_path='images/test', seg_map_path='labels/test'),
        metainfo=metainfo,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
