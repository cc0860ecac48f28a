# Tokens that leave are not fused: a map needs their values, each at its own
# place.
_base_ = [
    '../_base_/pose_vit_wholebody.py',
    '../_base_/backbones/evit_s_k07.py',
]

model = dict(backbone=dict(_base_.evit_s_k07, fuse=False))
