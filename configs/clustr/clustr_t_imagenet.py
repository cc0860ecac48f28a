# Table A2.
_base_ = ['clustr_s_imagenet.py', '../_base_/backbones/clustr_t.py']

model = dict(backbone=_base_.clustr_t)
