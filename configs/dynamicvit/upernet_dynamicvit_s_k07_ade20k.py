# In training, attention ignores the patches that would leave. By the loss of
# the task alone the predictors would let all of them stay.
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
custom_hooks = [dict(type='RatioLoss')]
