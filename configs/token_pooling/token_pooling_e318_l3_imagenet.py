_base_ = 'token_pooling_s_l3_imagenet.py'

model = dict(backbone=dict(arch='deit-e318'), head=dict(in_channels=318))
load_from = 'checkpoints/deit_e318.pth'
