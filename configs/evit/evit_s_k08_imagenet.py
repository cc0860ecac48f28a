_base_ = 'evit_s_k07_imagenet.py'

model = dict(backbone=dict(keep=0.8))
