# From scratch, like DeiT. The share of tokens that is kept falls from 1 to
# 0.7 between epochs 10 and 110.
_base_ = '../_base_/classifier_vit_imagenet.py'

model = dict(
    backbone=dict(type='EViT', arch='deit-small', keep=0.7, drop_path_rate=0.1)
)
custom_hooks = [dict(type='KeepRateSchedule', begin=10, end=110)]
