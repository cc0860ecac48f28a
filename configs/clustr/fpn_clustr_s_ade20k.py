# Table A3: 80k iterations of AdamW at 1e-4, batch 16, drop path 0.1.
_base_ = ['../_base_/fpn_ade20k.py', '../_base_/backbones/clustr_s.py']

model = dict(
    backbone=_base_.clustr_s,
    neck=dict(in_channels=[64, 128, 256, 512]),
)
train_first = 'configs/clustr/clustr_s_imagenet.py'
