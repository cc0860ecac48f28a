_base_ = '../_base_/hvt_imagenet.py'

model = dict(backbone=dict(arch='s-1'))
