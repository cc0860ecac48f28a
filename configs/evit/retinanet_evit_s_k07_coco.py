_base_ = [
    '../_base_/retinanet_vit_coco.py',
    '../_base_/backbones/evit_s_k07.py',
]

model = dict(backbone=_base_.evit_s_k07)
