# DynamicViT's training on ImageNet (supplement, section A): a config adds the
# backbone and the checkpoint of the dense model, which the student starts
# from and the teacher is.
_base_ = 'finetune_vit_imagenet.py'

custom_imports = dict(
    imports=[
        *_base_.custom_imports.imports,
        'clustr_mm.training.sparsification',
    ],
    allow_failed_imports=False,
)
model = dict(
    type='SparseClassifier',
    ratio_weight=2.0,
    kl_weight=0.5,
    token_weight=0.5,
)
# 1e-3 for the predictors and a hundredth of it for the rest, for a batch of
# 1024. The longest key that fits counts: it is that of a weight, or the one
# for the predictors' norms and biases.
predictor_weight = dict(lr_mult=100.0)
optim_wrapper = dict(
    optimizer=dict(lr=1e-5),
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
param_scheduler = [dict(_base_.param_scheduler[0], eta_min_ratio=0.01)]
custom_hooks = [dict(type='FreezeUntil', epoch=5, trained=['predictor'])]
