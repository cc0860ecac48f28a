_base_ = [
    '../_base_/pose_vit_wholebody.py',
    '../_base_/backbones/evit_s_k07.py',
]

model = dict(backbone=_base_.evit_s_k07)
