# A small ClusTR in UperNet on generated scenes: a few minutes on two cores.
_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/models/small_clustr.py',
    '../_base_/datasets/shapes_segmentation.py',
    '../_base_/runtime_mmseg.py',
]

model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=_base_.small_clustr,
    decode_head=dict(
        in_channels=[32, 64, 128, 192], channels=64, num_classes=8
    ),
    auxiliary_head=dict(in_channels=128, channels=64, num_classes=8),
)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=50),
    dict(type='PolyLR', power=1.0, by_epoch=False, begin=50, end=600),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=600, val_interval=300)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(logger=dict(interval=20), checkpoint=dict(interval=300))
randomness = dict(seed=0)
