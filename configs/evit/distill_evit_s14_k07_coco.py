_base_ = '../_base_/distill_coco.py'

model = dict(backbone=dict(type='EViT', keep=0.7))
