# Whole-body pose with a plain ViT, as in ViTPose: two deconvolutions from its
# map of stride 16, learning rates that decay with depth, clipped gradients.
_base_ = 'pose_wholebody.py'

model = dict(
    head=dict(
        in_channels=384,
        deconv_out_channels=(256, 256),
        deconv_kernel_sizes=(4, 4),
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
