_base_ = 'dynamicvit_s_k07_imagenet.py'

model = dict(
    backbone=dict(arch='deit-base'),
    head=dict(in_channels=768),
    pretrained='checkpoints/deit_b.pth',
)
