# DynamicViT from the trained ViT of vit_cifar10.py, which is the teacher, too.
# The study says by model.pretrained where that is.
_base_ = ['vit_cifar10.py', '../_base_/study_predictors.py']

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
    ratio_weight=_base_.ratio_weight,
    pretrained='work_dirs/study/vit/0/last.pth',
)
optim_wrapper = dict(paramwise_cfg=_base_.predictors)
