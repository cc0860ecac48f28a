# Fine-tune the distilled student.
_base_ = '../_base_/finetune_imagenette.py'

model = dict(
    backbone=dict(
        type='EViT',
        keep=0.5,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/distill_evit_s14_k05_coco/epoch_20.pth',
        ),
    )
)
