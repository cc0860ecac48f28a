# LV-ViT predicts by its patch tokens too. In this training, the class token's
# logits learn from the labels, and those of the tokens from the teacher's.
_base_ = '../_base_/sparsify_imagenet.py'

model = dict(
    backbone=dict(type='DynamicLVViT', arch='lvvit-small', keep=0.7),
    head=dict(
        _delete_=True,
        type='TokenLabelHead',
        num_classes=1000,
        in_channels=384,
    ),
    token_loss='kl',
    pretrained='published:lvvit-s',
)
