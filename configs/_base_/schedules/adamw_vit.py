# AdamW at 1e-4, with the weight decay that PyTorch gives it, for matrices.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys=dict(
            cls_token=dict(decay_mult=0.0), pos_embed=dict(decay_mult=0.0)
        ),
    ),
)
