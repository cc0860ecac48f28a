# Trained like DeiT, while each block merges 13 tokens into others. No training
# is needed: test the checkpoint of DeiT-S with it,
#   python tools/convert_checkpoint.py FILE checkpoints/deit_s.pth --from deit
#   python tools/test.py THIS_FILE checkpoints/deit_s.pth
_base_ = '../_base_/classifier_vit_imagenet.py'

model = dict(
    backbone=dict(type='ToMe', arch='deit-small', merge=13, drop_path_rate=0.1)
)
