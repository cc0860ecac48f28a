_base_ = 'token_pooling_s_l3_imagenet.py'

model = dict(backbone=dict(keep=5))
