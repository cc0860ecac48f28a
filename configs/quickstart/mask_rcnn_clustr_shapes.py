# A small ClusTR in a small Mask R-CNN on generated scenes: ten minutes on
# two cores.
#   python tools/make_shapes.py --task detection --num 800 --size 128 \
#       --out data/shapes_detection
_base_ = [
    '../_base_/mask_rcnn_coco.py',
    '../_base_/models/small_clustr.py',
]

data_root = 'data/shapes_detection'
metainfo = dict(classes=('ball', 'box', 'cone', 'ring', 'star'))
num_classes = 5
channels = 64
# Without trained weights to start from, heads need norms.
norm_cfg = dict(type='GN', num_groups=16)
model = dict(
    backbone=_base_.small_clustr,
    neck=dict(
        in_channels=[32, 64, 128, 192],
        out_channels=channels,
        norm_cfg=norm_cfg,
    ),
    rpn_head=dict(
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(scales=[4]),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels, finest_scale=28),
        bbox_head=dict(
            type='ConvFCBBoxHead',
            num_shared_convs=2,
            num_shared_fcs=1,
            in_channels=channels,
            conv_out_channels=channels,
            fc_out_channels=256,
            norm_cfg=norm_cfg,
            num_classes=num_classes,
        ),
        mask_roi_extractor=dict(out_channels=channels, finest_scale=28),
        mask_head=dict(
            num_convs=2,
            in_channels=channels,
            conv_out_channels=channels,
            norm_cfg=norm_cfg,
            num_classes=num_classes,
        ),
    ),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=200, max_per_img=100),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=100)),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(128, 128), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    _base_.pack,
]
train_dataloader = dict(
    batch_size=8,
    num_workers=1,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        filter_cfg=dict(min_size=4),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(
        data_root=data_root, metainfo=metainfo, pipeline=test_pipeline
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    ann_file=f'{data_root}/annotations/instances_val2017.json'
)
test_evaluator = val_evaluator
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        T_max=10,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=10, val_interval=5)
randomness = dict(seed=0)
