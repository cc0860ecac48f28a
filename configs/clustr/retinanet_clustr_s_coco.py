# Table A4: 12 epochs of AdamW at 1e-4, batch 16, drop path 0.1.
_base_ = '../_base_/retinanet_coco.py'

model = dict(
    backbone=dict(
        type='ClusTR', arch='small', drop_path_rate=0.1, window=56, reuse=True
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
