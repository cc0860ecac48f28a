# 0.7 of the tokens stay in the fourth, seventh and tenth block. Those that
# leave are not fused: a map needs their values, each at its own place.
_base_ = '../_base_/mask_rcnn_vit_coco.py'

model = dict(
    backbone=dict(
        type='EViT',
        arch='deit-small',
        keep=0.7,
        fuse=False,
        out_type='featmap',
        drop_path_rate=0.1,
    )
)
