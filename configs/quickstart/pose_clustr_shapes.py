# A small ClusTR finds the 133 key points of generated figures: ten minutes on
# two cores. The backbone starts from the one that `make quickstart` trains.
#   python tools/make_shapes.py --task pose --num 800 --out data/shapes_pose
_base_ = '../_base_/pose_wholebody.py'

data_root = 'data/shapes_pose'
ann_file = f'{data_root}/annotations/coco_wholebody_val_v1.0.json'
# Heat maps of stride 2: a face is 20 pixels wide.
codec = dict(
    type='MSRAHeatmap', input_size=(96, 128), heatmap_size=(48, 64), sigma=2
)
model = dict(
    backbone=dict(
        type='ClusTR',
        # The first three of the four stages there.
        arch=dict(
            depths=(1, 1, 3),
            dims=(32, 64, 128),
            num_heads=(1, 2, 4),
            ffn_ratios=(4, 4, 4),
        ),
        reduction=((64, 16), (16, 4), (4, 1)),
        out_indices=(2,),
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/quickstart/work/iter_600.pth',
            prefix='backbone.',
        ),
    ),
    head=dict(
        in_channels=128,
        deconv_out_channels=(128, 64, 64),
        loss=dict(loss_weight=1000.0),
        decoder=codec,
    ),
)
train_pipeline = [
    dict(type='LoadImage'),
    dict(type='GetBBoxCenterScale'),
    dict(type='RandomFlip', direction='horizontal'),
    dict(
        type='RandomBBoxTransform', rotate_factor=20, scale_factor=(0.9, 1.2)
    ),
    dict(type='TopdownAffine', input_size=codec['input_size']),
    dict(type='GenerateTarget', encoder=codec),
    dict(type='PackPoseInputs'),
]
test_pipeline = [
    dict(type='LoadImage'),
    dict(type='GetBBoxCenterScale'),
    dict(type='TopdownAffine', input_size=codec['input_size']),
    dict(type='PackPoseInputs'),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=1,
    dataset=dict(data_root=data_root, pipeline=train_pipeline),
)
val_dataloader = dict(
    num_workers=1,
    dataset=dict(data_root=data_root, bbox_file=None, pipeline=test_pipeline),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=ann_file)
test_evaluator = val_evaluator
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-2, by_epoch=False, begin=0, end=50),
    dict(
        type='CosineAnnealingLR',
        by_epoch=True,
        T_max=24,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=24, val_interval=8)
randomness = dict(seed=0)
