_base_ = 'tome_s_r8_imagenet.py'

model = dict(backbone=dict(merge=16))
