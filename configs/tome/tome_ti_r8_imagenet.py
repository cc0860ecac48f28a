_base_ = 'tome_s_r8_imagenet.py'

model = dict(backbone=dict(arch='deit-tiny'), head=dict(in_channels=192))
