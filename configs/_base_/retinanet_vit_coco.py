# RetinaNet with a plain ViT: a pyramid from its last map, and clipped
# gradients.
_base_ = ['retinanet_coco.py', 'models/dense_vit.py']

model = dict(
    backbone=_base_.dense_vit,
    neck=dict(
        _delete_=True,
        type='SimpleFPN',
        in_channels=384,
        out_channels=256,
        strides=(8, 16, 32),
        num_outs=5,
    ),
)
optim_wrapper = dict(
    _base_.layer_decay,
    optimizer=dict(weight_decay=0.1),
    clip_grad=dict(max_norm=1.0),
)
