# Student and teacher start from DeiT-S.
_base_ = '../_base_/sparsify_imagenet.py'

model = dict(
    backbone=dict(type='DynamicViT', arch='deit-small', keep=0.7),
    pretrained='published:deit-small',
)
