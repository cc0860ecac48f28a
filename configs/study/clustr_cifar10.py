# A small ClusTR on CIFAR-10 enlarged to 64 x 64: 256 tokens in its first
# stage.
_base_ = [
    '../_base_/models/small_classifier.py',
    '../_base_/models/small_clustr.py',
    '../_base_/datasets/study_cifar10.py',
    '../_base_/schedules/study_epochs.py',
    '../_base_/runtime_mmpretrain.py',
]

model = dict(
    backbone=dict(_base_.small_clustr, out_indices=(3,)),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(num_classes=10, in_channels=192),
)
image_size = (64, 64)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomCrop', crop_size=32, padding=4),
    dict(type='Resize', scale=image_size),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=image_size),
    dict(type='PackInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
randomness = dict(seed=0)
