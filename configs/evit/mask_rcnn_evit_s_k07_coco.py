_base_ = [
    '../_base_/mask_rcnn_vit_coco.py',
    '../_base_/backbones/evit_s_k07.py',
]

model = dict(backbone=_base_.evit_s_k07)
