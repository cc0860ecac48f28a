# COCO's training pictures, without labels; 64 on each of two GPUs.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='RandomResizedCrop',
        scale=224,
        backend='pillow',
        interpolation='bilinear',
    ),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=64,
    num_workers=8,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset',
        data_root='data/coco',
        data_prefix='train2017',
        with_label=False,
        pipeline=train_pipeline,
    ),
)
auto_scale_lr = dict(enable=False, base_batch_size=128)
