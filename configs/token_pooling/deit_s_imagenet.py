# Stage 1: DeiT-S.
_base_ = '../_base_/classifier_vit_imagenet.py'

model = dict(
    backbone=dict(type='ThinViT', arch='deit-small', drop_path_rate=0.1)
)
