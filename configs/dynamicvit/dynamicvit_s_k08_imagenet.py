_base_ = 'dynamicvit_s_k07_imagenet.py'

model = dict(backbone=dict(keep=0.8))
