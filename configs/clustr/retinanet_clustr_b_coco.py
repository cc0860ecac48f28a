_base_ = 'retinanet_clustr_s_coco.py'

model = dict(
    backbone=dict(arch='base', drop_path_rate=0.3),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
