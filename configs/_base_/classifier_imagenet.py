# Classification on ImageNet; a config adds the backbone.
_base_ = [
    'models/classifier.py',
    'datasets/imagenet.py',
    'schedules/imagenet_300e.py',
    'runtime_mmpretrain.py',
]
