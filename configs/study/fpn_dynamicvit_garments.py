# DynamicViT in the same Semantic FPN, with the ratio loss. The study says by
# load_from and the init_cfg where its trunk and its predictors come from.
_base_ = ['fpn_vit_garments.py', '../_base_/study_predictors.py']

model = dict(backbone=dict(type='DynamicViT', keep=0.7))
optim_wrapper = dict(paramwise_cfg=_base_.predictors)
custom_hooks = [dict(type='RatioLoss', weight=_base_.ratio_weight)]
