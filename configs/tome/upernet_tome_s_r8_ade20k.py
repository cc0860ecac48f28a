_base_ = [
    '../_base_/upernet_vit_ade20k.py',
    '../_base_/backbones/tome_s_r8.py',
]

model = dict(backbone=_base_.tome_s_r8)
