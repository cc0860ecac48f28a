# A linear classifier: a config adds the backbone, the classes and the
# channels.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True,
    ),
    head=dict(type='LinearClsHead'),
)
