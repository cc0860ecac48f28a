# 12 epochs of AdamW; a config adds the learning rate.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', weight_decay=1e-4),
    paramwise_cfg=dict(norm_decay_mult=0.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(
        type='MultiStepLR',
        milestones=[8, 11],
        gamma=0.1,
        by_epoch=True,
        begin=0,
        end=12,
    ),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
