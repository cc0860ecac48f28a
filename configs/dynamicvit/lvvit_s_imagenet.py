# LV-ViT-S with all its tokens, as the dense model of DynamicViT: to test and
# to use what was published. The training is DeiT's, not LV-ViT's own by token
# labels.
_base_ = '../_base_/classifier_vit_imagenet.py'

model = dict(
    backbone=dict(type='LVViT', arch='lvvit-small', drop_path_rate=0.1),
    head=dict(
        _delete_=True,
        type='TokenLabelHead',
        num_classes=1000,
        in_channels=384,
    ),
)
