# A small plain ViT in Semantic FPN: garments on photographs, 128 x 128 in
# 256 tokens of 8 x 8.
_base_ = [
    '../_base_/study_fpn_garments.py',
    '../_base_/models/study_vit.py',
]

model = dict(
    backbone=dict(_base_.study_vit, out_type='featmap'),
    neck=dict(
        _delete_=True,
        type='SimpleFPN',
        in_channels=128,
        out_channels=64,
        in_stride=8,
    ),
)
