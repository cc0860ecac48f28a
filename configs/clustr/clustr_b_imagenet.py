# Table A2: stronger drop path, and clipped gradients.
_base_ = ['clustr_s_imagenet.py', '../_base_/backbones/clustr_b.py']

model = dict(backbone=_base_.clustr_b)
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
