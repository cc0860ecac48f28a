# Fine-tune what distill_evit_shapes.py distilled.
_base_ = '../_base_/finetune_shapes.py'

model = dict(
    backbone=dict(
        type='EViT',
        arch=dict(embed_dims=64, num_heads=2, feedforward_channels=128),
        keep=0.7,
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/distill_evit_shapes/epoch_20.pth',
            prefix='backbone.',
        ),
    ),
    head=dict(in_channels=64),
)
