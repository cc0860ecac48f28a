_base_ = '../_base_/hvt_imagenet.py'

model = dict(backbone=dict(arch='ti-1'), head=dict(in_channels=192))
