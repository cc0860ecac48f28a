_base_ = [
    '../_base_/fpn_vit_ade20k.py',
    '../_base_/backbones/evit_s_k07.py',
]

model = dict(backbone=_base_.evit_s_k07)
