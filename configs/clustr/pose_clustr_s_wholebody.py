# Section 4.4: 210 epochs of AdamW at 5e-4, batch 512.
_base_ = ['../_base_/pose_wholebody.py', '../_base_/backbones/clustr_s.py']

model = dict(
    backbone=dict(_base_.clustr_s, out_indices=(3,)),
    head=dict(in_channels=512),
)
train_first = 'configs/clustr/clustr_s_imagenet.py'
