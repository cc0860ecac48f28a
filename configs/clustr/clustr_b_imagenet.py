# Table A2: stronger drop path, and clipped gradients.
_base_ = 'clustr_s_imagenet.py'

model = dict(backbone=dict(arch='base', drop_path_rate=0.3))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
