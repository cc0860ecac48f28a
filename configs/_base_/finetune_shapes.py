# 10 short epochs that start from deit_shapes.
_base_ = 'classifier_shapes.py'

optim_wrapper = dict(optimizer=dict(lr=1e-4))
param_scheduler = [
    dict(
        _base_.param_scheduler[1],
        T_max=10,
        eta_min_ratio=0.1,
        begin=0,
        end=10,
    )
]
train_cfg = dict(max_epochs=10)
