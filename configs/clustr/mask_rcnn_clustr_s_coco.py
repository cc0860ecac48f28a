# Table A4: 12 epochs of AdamW at 2e-4, batch 16, drop path 0.1.
_base_ = ['../_base_/mask_rcnn_coco.py', '../_base_/backbones/clustr_s.py']

model = dict(
    backbone=dict(_base_.clustr_s, window=56, reuse=True),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
train_first = 'configs/clustr/clustr_s_imagenet.py'
