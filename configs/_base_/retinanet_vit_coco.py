# RetinaNet with a plain ViT: see mask_rcnn_vit_coco.py.
_base_ = 'retinanet_coco.py'

model = dict(
    neck=dict(
        _delete_=True,
        type='SimpleFPN',
        in_channels=384,
        out_channels=256,
        strides=(8, 16, 32),
        num_outs=5,
    )
)
optim_wrapper = dict(
    constructor='LayerDecayConstructor',
    optimizer=dict(weight_decay=0.1),
    paramwise_cfg=dict(
        layer_decay_rate=0.8,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)
        ),
    ),
    clip_grad=dict(max_norm=1.0),
)
