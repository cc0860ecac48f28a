# Starts from DeiT-e252, which nobody has published. To train it:
#   python tools/train.py configs/token_pooling/deit_s_imagenet.py \
#       --cfg-options model.backbone.arch=deit-e252 model.head.in_channels=252
_base_ = 'token_pooling_s_l3_imagenet.py'

model = dict(backbone=dict(arch='deit-e252'), head=dict(in_channels=252))
load_from = 'checkpoints/deit_e252.pth'
