# In training, attention ignores the patches that leave, and the predictors
# learn from the loss of the task alone, so they start from those that learnt
# on ImageNet.
_base_ = [
    '../_base_/upernet_vit_ade20k.py',
    '../_base_/backbones/dynamicvit_s_k07.py',
]

model = dict(
    backbone=dict(
        _base_.dynamicvit_s_k07,
        init_cfg=dict(checkpoint='published:dynamicvit-s-k07'),
    )
)
