# Table A2.
_base_ = 'clustr_s_imagenet.py'

model = dict(backbone=dict(arch='tiny'))
