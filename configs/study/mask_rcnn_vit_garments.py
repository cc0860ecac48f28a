# A small plain ViT in the same Mask R-CNN: 256 tokens of 8 x 8 pixels.
_base_ = [
    'mask_rcnn_clustr_garments.py',
    '../_base_/models/study_vit.py',
]

model = dict(
    backbone=dict(_base_.study_vit, _delete_=True, out_type='featmap'),
    neck=dict(
        _delete_=True,
        type='SimpleFPN',
        in_channels=128,
        out_channels=64,
        in_stride=8,
        num_outs=5,
    ),
)
