# Task-agnostic distillation from DINOv2's ViT-L/14 on COCO's pictures, without
# their labels: a config adds the student. The loss and the weight decay are
# ours, as the paper prints none.
_base_ = [
    'datasets/coco_pictures.py',
    'schedules/adamw_vit.py',
    'runtime_mmpretrain.py',
]

model = dict(
    type='TokenDistiller',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True,
    ),
    backbone=dict(arch='small-14'),
    teacher=dict(
        type='mmpretrain.VisionTransformer',
        arch='large',
        img_size=224,
        patch_size=14,
        layer_scale_init_value=1e-5,
        out_type='raw',
        init_cfg=dict(
            type='Pretrained',
            checkpoint='https://download.openmmlab.com/mmpretrain/v1.0/dinov2/'
            'vit-large-p14_dinov2-pre_3rdparty_20230426-f3302d9e.pth',
            prefix='backbone.',
        ),
    ),
    teacher_dims=1024,
    patch_weight=1.0,
)
param_scheduler = [
    dict(
        type='CosineAnnealingLR',
        T_max=20,
        by_epoch=True,
        begin=0,
        end=20,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=20)
# Nothing is evaluated.
default_hooks = dict(checkpoint=dict(save_best=None))
