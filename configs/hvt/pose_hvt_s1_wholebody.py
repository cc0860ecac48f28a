_base_ = [
    '../_base_/pose_vit_wholebody.py',
    '../_base_/backbones/hvt_s1.py',
]

model = dict(
    backbone=dict(_base_.hvt_s1, init_cfg=dict(checkpoint='published:hvt-s-1'))
)
