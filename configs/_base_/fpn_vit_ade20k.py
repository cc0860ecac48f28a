# Semantic FPN with a plain ViT: a pyramid from its last map.
_base_ = ['fpn_ade20k.py', 'models/dense_vit.py']

model = dict(
    backbone=_base_.dense_vit,
    neck=dict(
        _delete_=True, type='SimpleFPN', in_channels=384, out_channels=256
    ),
)
optim_wrapper = dict(_base_.layer_decay, optimizer=dict(weight_decay=0.05))
