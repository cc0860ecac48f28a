# What a plain ViT needs in a dense task: its last map, whose positions are
# those of pretraining, 14 x 14, interpolated to the size of an image; DeiT-S's
# published weights, unless a config names others; and learning rates that
# decay with depth, as is usual for pretrained ViTs.
dense_vit = dict(
    out_type='featmap',
    init_cfg=dict(
        type='Pretrained',
        checkpoint='published:deit-small',
        prefix='backbone.',
    ),
)
layer_decay = dict(
    constructor='LayerDecayConstructor',
    paramwise_cfg=dict(
        layer_decay_rate=0.8,
        custom_keys=dict(
            pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)
        ),
    ),
)
