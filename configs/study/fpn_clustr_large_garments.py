# Garments enlarged to 384 x 384, 9216 tokens, with the dials of the detection
# configs.
_base_ = 'fpn_clustr_garments.py'

data_root = 'data/study/garments_256'
image_size = (384, 384)
model = dict(
    data_preprocessor=dict(size=image_size),
    backbone=dict(window=16, reuse=True),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='Resize', scale=image_size),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_size),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    dataset=dict(data_root=data_root, pipeline=train_pipeline)
)
val_dataloader = dict(
    dataset=dict(data_root=data_root, pipeline=test_pipeline)
)
test_dataloader = val_dataloader
