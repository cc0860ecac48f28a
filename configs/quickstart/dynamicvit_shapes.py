# DynamicViT from the dense model that deit_shapes.py trains, which is also the
# teacher. In the log, kept_1 to kept_3 come to 0.7, 0.49 and 0.343.
_base_ = '../_base_/finetune_shapes.py'

custom_imports = dict(
    imports=[
        *_base_.custom_imports.imports,
        'clustr_mm.training.sparsification',
    ],
    allow_failed_imports=False,
)
model = dict(
    type='SparseClassifier',
    backbone=dict(type='DynamicViT', keep=0.7),
    # More than the paper's 2, as a batch has 16 pictures rather than 1024.
    ratio_weight=10.0,
    pretrained='work_dirs/deit_shapes/epoch_20.pth',
)
log_processor = dict(
    custom_cfg=[
        dict(data_src=f'kept_{stage}', method_name='mean', window_size=20)
        for stage in (1, 2, 3)
    ]
)
predictor_weight = dict(lr_mult=100.0)
optim_wrapper = dict(
    optimizer=dict(lr=3e-5),
    paramwise_cfg=dict(
        custom_keys={
            'predictor': dict(lr_mult=100.0, decay_mult=0.0),
            'predictor.features.1.weight': predictor_weight,
            'predictor.score.0.weight': predictor_weight,
            'predictor.score.2.weight': predictor_weight,
            'predictor.score.4.weight': predictor_weight,
        }
    ),
)
custom_hooks = [dict(type='FreezeUntil', epoch=2, trained=['predictor'])]
