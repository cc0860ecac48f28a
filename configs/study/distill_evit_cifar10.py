# An EViT learns, without labels, the tokens of the ViT of vit_cifar10.py.
_base_ = 'vit_cifar10.py'

model = dict(
    _delete_=True,
    type='TokenDistiller',
    data_preprocessor=dict(
        _base_.model.data_preprocessor, type='ClsDataPreprocessor'
    ),
    backbone=dict(_base_.model.backbone, type='EViT', keep=0.7),
    teacher=dict(
        _base_.model.backbone,
        type='ThinViT',
        out_type='raw',
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/study/vit/0/last.pth',
            prefix='backbone.',
        ),
    ),
    teacher_dims=128,
)
# Nothing to evaluate. That the pictures come with labels is of no account.
val_dataloader = val_evaluator = val_cfg = None
test_dataloader = test_evaluator = test_cfg = None
default_hooks = dict(checkpoint=dict(save_best=None))
