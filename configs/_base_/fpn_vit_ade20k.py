# Semantic FPN with a plain ViT: see upernet_vit_ade20k.py.
_base_ = 'fpn_ade20k.py'

model = dict(
    neck=dict(
        _delete_=True, type='SimpleFPN', in_channels=384, out_channels=256
    )
)
optim_wrapper = dict(
    constructor='LayerDecayConstructor',
    optimizer=dict(weight_decay=0.05),
    paramwise_cfg=dict(
        layer_decay_rate=0.8,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)
        ),
    ),
)
