# Whole-body pose with a plain ViT, as in ViTPose: two deconvolutions from its
# map of stride 16, and clipped gradients.
_base_ = ['pose_wholebody.py', 'models/dense_vit.py']

model = dict(
    backbone=_base_.dense_vit,
    head=dict(
        in_channels=384,
        deconv_out_channels=(256, 256),
        deconv_kernel_sizes=(4, 4),
    ),
)
optim_wrapper = dict(
    _base_.layer_decay,
    optimizer=dict(weight_decay=0.1),
    clip_grad=dict(max_norm=1.0),
)
