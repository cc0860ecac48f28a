_base_ = ['upernet_clustr_s_ade20k.py', '../_base_/backbones/clustr_t.py']

model = dict(backbone=_base_.clustr_t)
train_first = 'configs/clustr/clustr_t_imagenet.py'
