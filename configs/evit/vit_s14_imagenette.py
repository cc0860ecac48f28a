# Fine-tune the distilled student.
_base_ = '../_base_/finetune_imagenette.py'

model = dict(
    backbone=dict(
        type='ThinViT',
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/distill_vit_s14_coco/epoch_20.pth',
        ),
    )
)
