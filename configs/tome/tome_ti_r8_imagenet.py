_base_ = 'tome_s_r13_imagenet.py'

model = dict(
    backbone=dict(arch='deit-tiny', merge=8), head=dict(in_channels=192)
)
