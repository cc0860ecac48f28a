# A narrower EViT learns, without labels, the tokens of the dense model that
# deit_shapes.py trains. In the log, cosine_class and cosine_patch rise.
_base_ = '../_base_/classifier_shapes.py'

model = dict(
    _delete_=True,
    type='TokenDistiller',
    data_preprocessor=dict(
        _base_.model.data_preprocessor, type='ClsDataPreprocessor'
    ),
    backbone=dict(
        _base_.model.backbone,
        type='EViT',
        arch=dict(
            embed_dims=64,
            num_layers=6,
            num_heads=2,
            feedforward_channels=128,
            patch_size=12,
        ),
        keep=0.7,
    ),
    teacher=dict(
        _base_.model.backbone,
        type='ThinViT',
        out_type='raw',
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/deit_shapes/epoch_20.pth',
            prefix='backbone.',
        ),
    ),
    teacher_dims=96,
)
# Pictures alone, and nothing to evaluate.
train_dataloader = dict(dataset=dict(with_label=False))
val_dataloader = val_evaluator = val_cfg = None
test_dataloader = test_evaluator = test_cfg = None
default_hooks = dict(checkpoint=dict(save_best=None))
