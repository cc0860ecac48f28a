# Tree crowns in aerial photographs: tiles of 400 x 400, and boxes alone.
_base_ = 'mask_rcnn_clustr_garments.py'

data_root = 'data/study/crowns'
image_size = (400, 400)
metainfo = dict(_delete_=True, classes=('tree',))
model = dict(
    roi_head=dict(
        bbox_head=dict(num_classes=1), mask_roi_extractor=None, mask_head=None
    )
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        type='RandomFlip',
        prob=[0.25, 0.25],
        direction=['horizontal', 'vertical'],
    ),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_size, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    _base_.pack,
]
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        data_root=data_root,
        metainfo=dict(_delete_=True, classes=('tree',)),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        metainfo=dict(_delete_=True, classes=('tree',)),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/test.json', metric='bbox')
test_evaluator = val_evaluator
# There are few tiles.
max_epochs = 60
param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], T_max=max_epochs),
]
train_cfg = dict(max_epochs=max_epochs, val_interval=20)
# Of boxes drawn by eye, the place can be told and the outline hardly.
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP_50'))
