# From scratch, like DeiT. The share of tokens that is kept falls from 1 to
# 0.7 between epochs 10 and 110.
_base_ = [
    '../_base_/classifier_vit_imagenet.py',
    '../_base_/backbones/evit_s_k07.py',
]

model = dict(backbone=_base_.evit_s_k07)
custom_hooks = [dict(type='KeepRateSchedule', begin=10, end=110)]
