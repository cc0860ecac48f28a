_base_ = 'dynamicvit_lvvit_s_k07_imagenet.py'

model = dict(backbone=dict(keep=0.5))
