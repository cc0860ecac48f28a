_base_ = 'lvvit_s_imagenet.py'

model = dict(backbone=dict(arch='lvvit-medium'), head=dict(in_channels=512))
