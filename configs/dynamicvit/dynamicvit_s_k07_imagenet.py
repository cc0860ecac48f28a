# Needs DeiT-S:
#   python tools/convert_checkpoint.py FILE checkpoints/deit_s.pth --from deit
_base_ = '../_base_/sparsify_imagenet.py'

model = dict(
    backbone=dict(type='DynamicViT', arch='deit-small', keep=0.7),
    pretrained='checkpoints/deit_s.pth',
)
