# A linear classifier on the class token of a distilled ViT-S/14: a config
# adds the backbone and the number of classes.
_base_ = 'small_classifier.py'

model = dict(
    backbone=dict(arch='small-14', init_cfg=dict(prefix='backbone.')),
    head=dict(num_classes=10, in_channels=384),
)
