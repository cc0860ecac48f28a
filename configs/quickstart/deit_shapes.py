# A dense ViT, which most of the other small configs start from or learn from.
_base_ = '../_base_/classifier_shapes.py'

model = dict(backbone=dict(type='ThinViT'))
