# 210 epochs of AdamW at 5e-4 for a batch of 512.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4, weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=500),
    dict(
        type='MultiStepLR',
        milestones=[170, 200],
        gamma=0.1,
        by_epoch=True,
        begin=0,
        end=210,
    ),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=210, val_interval=10)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
