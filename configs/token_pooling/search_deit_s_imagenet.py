# Stage 2 (appendix C): how many tokens should each block keep?
# tools/search_keep.py runs this and writes the answer to a config. The paper
# prints no values of lambda, which is sparsity_weight.
_base_ = '../_base_/finetune_vit_imagenet.py'

custom_imports = dict(
    imports=[
        *_base_.custom_imports.imports,
        'clustr_mm.training.soft_extract',
    ],
    allow_failed_imports=False,
)
model = dict(
    type='KeepSearch',
    backbone=dict(
        type='SoftExtractDeiT', arch='deit-small', drop_path_rate=0.1
    ),
    sparsity_weight=3e-4,
)
# 1e-3 takes a parameter from 1 to 0 within an epoch.
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys=dict(retention=dict(lr_mult=50.0, decay_mult=0.0))
    )
)
load_from = 'published:deit-small'
