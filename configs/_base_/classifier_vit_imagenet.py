# A plain ViT's class token, or the mean of its tokens, on ImageNet, trained
# like DeiT: a config adds the backbone.
_base_ = 'classifier_imagenet.py'

model = dict(neck=None, head=dict(in_channels=384))
optim_wrapper = dict(
    paramwise_cfg=dict(
        custom_keys=dict(
            cls_token=dict(decay_mult=0.0), pos_embed=dict(decay_mult=0.0)
        )
    )
)
# An epoch has as many images as without, each three times in its own guise.
train_dataloader = dict(sampler=dict(type='RepeatAugSampler', num_repeats=3))
