# Trained like DeiT, while each block merges 8 tokens into others. No training
# is needed: test the checkpoint of DeiT-S with it,
#   python tools/test.py THIS_FILE published:deit-small
_base_ = [
    '../_base_/classifier_vit_imagenet.py',
    '../_base_/backbones/tome_s_r8.py',
]

model = dict(backbone=_base_.tome_s_r8)
