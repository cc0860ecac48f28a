# Section 4.4: 210 epochs of AdamW at 5e-4, batch 512.
_base_ = '../_base_/pose_wholebody.py'

model = dict(
    backbone=dict(
        type='ClusTR', arch='small', out_indices=(3,), drop_path_rate=0.1
    ),
    head=dict(in_channels=512),
)
