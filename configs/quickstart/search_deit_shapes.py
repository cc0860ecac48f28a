# How many tokens should each block of the model of deit_shapes.py keep? Run by
#   python tools/search_keep.py configs/quickstart/search_deit_shapes.py \
#       --base configs/quickstart/token_pooling_shapes.py --out FILE
# With a larger sparsity_weight, the lambda, it finds fewer.
_base_ = '../_base_/finetune_shapes.py'

custom_imports = dict(
    imports=[
        *_base_.custom_imports.imports,
        'clustr_mm.training.soft_extract',
    ],
    allow_failed_imports=False,
)
model = dict(
    type='KeepSearch',
    backbone=dict(type='SoftExtractDeiT'),
    sparsity_weight=1e-3,
)
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys=dict(retention=dict(lr_mult=100.0, decay_mult=0.0))
    )
)
load_from = 'work_dirs/deit_shapes/epoch_20.pth'
