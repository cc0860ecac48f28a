# Table A3: 80k iterations of AdamW at 1e-4, batch 16, drop path 0.1.
_base_ = '../_base_/fpn_ade20k.py'

model = dict(
    backbone=dict(type='ClusTR', arch='small', drop_path_rate=0.1),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
