_base_ = 'evit_s_k07_finetune_imagenet.py'

model = dict(backbone=dict(keep=0.6))
