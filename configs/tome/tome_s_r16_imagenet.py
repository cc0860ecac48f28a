_base_ = 'tome_s_r13_imagenet.py'

model = dict(backbone=dict(merge=16))
