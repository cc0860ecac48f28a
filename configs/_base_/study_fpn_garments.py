# A small Semantic FPN on garments: a config adds the backbone and its neck.
_base_ = [
    'models/fpn.py',
    'datasets/study_garments.py',
    'schedules/study_epochs.py',
    'runtime_mmseg.py',
]

norm_cfg = dict(type='BN', requires_grad=True)
model = dict(
    data_preprocessor=dict(size=_base_.image_size),
    neck=dict(out_channels=64),
    decode_head=dict(
        in_channels=[64, 64, 64, 64],
        channels=64,
        num_classes=11,
        norm_cfg=norm_cfg,
    ),
)
default_hooks = dict(
    logger=dict(log_metric_by_epoch=True), checkpoint=dict(by_epoch=True)
)
log_processor = dict(by_epoch=True)
randomness = dict(seed=0)
