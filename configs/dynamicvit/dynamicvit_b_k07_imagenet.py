_base_ = 'dynamicvit_s_k07_imagenet.py'

# The published command for DeiT-B has `--drop_path 0.2 --ratio_weight 5.0`.
model = dict(
    backbone=dict(arch='deit-base', drop_path_rate=0.2),
    ratio_weight=5.0,
    head=dict(in_channels=768),
    pretrained='published:deit-base',
)
