# Table A2.
_base_ = [
    '../_base_/classifier_imagenet.py',
    '../_base_/backbones/clustr_s.py',
]

model = dict(
    backbone=dict(_base_.clustr_s, out_indices=(3,)),
    head=dict(in_channels=512),
)
