# DynamicViT in the same Mask R-CNN: see fpn_dynamicvit_garments.py.
_base_ = ['mask_rcnn_vit_garments.py', '../_base_/study_predictors.py']

model = dict(backbone=dict(type='DynamicViT', keep=0.7))
optim_wrapper = dict(paramwise_cfg=_base_.predictors)
custom_hooks = [dict(type='RatioLoss', weight=_base_.ratio_weight)]
