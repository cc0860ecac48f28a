# Mask R-CNN with a plain ViT, as in ViTDet: a pyramid from the last map, and
# learning rates that decay with depth. Positions are those of pretraining,
# 14 x 14, interpolated to the size of an image.
_base_ = 'mask_rcnn_coco.py'

model = dict(
    neck=dict(
        _delete_=True,
        type='SimpleFPN',
        in_channels=384,
        out_channels=256,
        num_outs=5,
    )
)
optim_wrapper = dict(
    constructor='LayerDecayConstructor',
    optimizer=dict(lr=1e-4, weight_decay=0.1),
    paramwise_cfg=dict(
        layer_decay_rate=0.8,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)
        ),
    ),
)
