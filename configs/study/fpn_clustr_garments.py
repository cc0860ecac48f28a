# A small ClusTR in Semantic FPN: garments on photographs, 128 x 128.
_base_ = [
    '../_base_/study_fpn_garments.py',
    '../_base_/models/small_clustr.py',
]

model = dict(
    backbone=_base_.small_clustr,
    neck=dict(in_channels=[32, 64, 128, 192]),
)
