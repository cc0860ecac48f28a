# UperNet with a plain ViT: a pyramid from its last map.
_base_ = ['upernet_ade20k.py', 'models/dense_vit.py']

model = dict(
    backbone=_base_.dense_vit,
    neck=dict(type='SimpleFPN', in_channels=384, out_channels=256),
    decode_head=dict(in_channels=[256, 256, 256, 256]),
    auxiliary_head=dict(in_channels=256),
)
optim_wrapper = dict(
    _base_.layer_decay, optimizer=dict(lr=1e-4, weight_decay=0.05)
)
