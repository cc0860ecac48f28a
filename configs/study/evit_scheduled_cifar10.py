# EViT from scratch: the share of tokens that it keeps falls from 1 during the
# first two of five epochs, as the paper's does between 10 and 110 of 300.
_base_ = 'vit_cifar10.py'

model = dict(backbone=dict(type='EViT', keep=0.5))
custom_hooks = [dict(type='KeepRateSchedule', begin=0, end=2)]
