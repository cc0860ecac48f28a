# Starts from DeiT-e318, which nobody has published. To train it:
#   python tools/train.py configs/token_pooling/deit_s_imagenet.py \
#       --cfg-options model.backbone.arch=deit-e318 model.head.in_channels=318
_base_ = 'token_pooling_s_l3_imagenet.py'

model = dict(backbone=dict(arch='deit-e318'), head=dict(in_channels=318))
load_from = 'checkpoints/deit_e318.pth'
