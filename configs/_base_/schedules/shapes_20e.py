# 20 short epochs on generated pictures, 2 of them to warm up.
_base_ = 'adamw_vit.py'

optim_wrapper = dict(optimizer=dict(lr=1e-3, weight_decay=0.05))
param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=0.01,
        by_epoch=True,
        begin=0,
        end=2,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        T_max=18,
        eta_min_ratio=0.01,
        by_epoch=True,
        begin=2,
        end=20,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=20, val_interval=5)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
