_base_ = ['fpn_clustr_s_ade20k.py', '../_base_/backbones/clustr_b.py']

model = dict(
    backbone=_base_.clustr_b,
    neck=dict(in_channels=[64, 128, 320, 512]),
)
train_first = 'configs/clustr/clustr_b_imagenet.py'
