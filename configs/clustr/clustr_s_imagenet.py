# Table A2.
_base_ = '../_base_/classifier_imagenet.py'

model = dict(
    backbone=dict(
        type='ClusTR', arch='small', out_indices=(3,), drop_path_rate=0.1
    ),
    head=dict(in_channels=512),
)
