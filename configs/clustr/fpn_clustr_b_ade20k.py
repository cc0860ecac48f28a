_base_ = 'fpn_clustr_s_ade20k.py'

model = dict(
    backbone=dict(arch='base', drop_path_rate=0.3),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
