_base_ = 'evit_s_k07_imagenet.py'

model = dict(backbone=dict(arch='deit-base'), head=dict(in_channels=768))
