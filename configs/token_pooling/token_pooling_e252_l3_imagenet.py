_base_ = 'token_pooling_s_l3_imagenet.py'

model = dict(backbone=dict(arch='deit-e252'), head=dict(in_channels=252))
load_from = 'checkpoints/deit_e252.pth'
