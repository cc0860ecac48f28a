# Fine-tune DeiT-S at a constant keep rate.
_base_ = [
    '../_base_/finetune_vit_imagenet.py',
    '../_base_/backbones/evit_s_k07.py',
]

model = dict(backbone=_base_.evit_s_k07)
optim_wrapper = dict(optimizer=dict(weight_decay=1e-6))
load_from = 'published:deit-small'
