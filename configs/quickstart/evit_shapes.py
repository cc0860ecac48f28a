# EViT from scratch. The log's `keep` falls from 1 at epoch 2 to 0.5 at epoch
# 12, and goes on where it was if the run is interrupted and resumed.
_base_ = '../_base_/classifier_shapes.py'

model = dict(backbone=dict(type='EViT', keep=0.5))
custom_hooks = [dict(type='KeepRateSchedule', begin=2, end=12)]
