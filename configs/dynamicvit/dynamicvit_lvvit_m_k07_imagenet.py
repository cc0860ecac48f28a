_base_ = 'dynamicvit_lvvit_s_k07_imagenet.py'

model = dict(
    backbone=dict(arch='lvvit-medium'),
    head=dict(in_channels=512),
    pretrained='published:lvvit-m',
)
