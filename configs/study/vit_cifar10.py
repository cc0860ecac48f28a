# A small plain ViT on CIFAR-10: 64 tokens of 4 x 4 pixels. The arms of the
# study change the backbone by --cfg-options: see clustr_mm/study/claims/.
_base_ = [
    '../_base_/models/small_classifier.py',
    '../_base_/models/study_vit.py',
    '../_base_/datasets/study_cifar10.py',
    '../_base_/schedules/study_epochs.py',
    '../_base_/runtime_mmpretrain.py',
]

model = dict(
    backbone=dict(
        _base_.study_vit,
        arch=dict(_base_.study_vit.arch, patch_size=4),
        img_size=32,
    ),
    head=dict(num_classes=10, in_channels=128),
)
randomness = dict(seed=0)
