# UperNet with a plain ViT: a pyramid from its last map, and learning rates
# that decay with depth, as is usual for pretrained ViTs. Positions are those
# of pretraining, 14 x 14, interpolated to the size of an image.
_base_ = 'upernet_ade20k.py'

model = dict(
    neck=dict(type='SimpleFPN', in_channels=384, out_channels=256),
    decode_head=dict(in_channels=[256, 256, 256, 256]),
    auxiliary_head=dict(in_channels=256),
)
optim_wrapper = dict(
    constructor='LayerDecayConstructor',
    optimizer=dict(lr=1e-4, weight_decay=0.05),
    paramwise_cfg=dict(
        layer_decay_rate=0.8,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)
        ),
    ),
)
