# A small plain ViT on generated pictures: a config adds its type.
_base_ = [
    'models/small_classifier.py',
    'datasets/shapes_classification.py',
    'schedules/shapes_20e.py',
    'runtime_mmpretrain.py',
]

model = dict(
    # 8 x 8 patches. Without bounds, the attention that is learned from so few
    # pictures gets sharp, and the gradients of DynamicViT's decisions, which
    # go through its softmax, drown those of the ratio loss.
    backbone=dict(
        arch=dict(
            embed_dims=96,
            num_layers=6,
            num_heads=3,
            feedforward_channels=192,
            patch_size=12,
        ),
        img_size=96,
        qk_norm='fixed',
    ),
    head=dict(num_classes=5, in_channels=96),
)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=5))
randomness = dict(seed=0)
