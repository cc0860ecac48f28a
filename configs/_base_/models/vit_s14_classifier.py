# A linear classifier on the class token of a distilled ViT-S/14: a config
# adds the backbone and the number of classes.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True,
    ),
    backbone=dict(arch='small-14', init_cfg=dict(prefix='backbone.')),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=384),
)
