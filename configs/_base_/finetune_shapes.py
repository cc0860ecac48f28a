# 10 short epochs that start from deit_shapes.
_base_ = 'classifier_shapes.py'

optim_wrapper = dict(optimizer=dict(lr=1e-4))
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        T_max=10,
        eta_min_ratio=0.1,
        by_epoch=True,
        begin=0,
        end=10,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(max_epochs=10)
