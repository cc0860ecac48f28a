# Table 7, the column of ADE20K.
_base_ = '../fpn_clustr_t_ade20k.py'

model = dict(backbone=dict(reduction=(64, 16, 4, 1)))
train_first = 'configs/clustr/ablation/clustr_t_single_64_16_4_1_imagenet.py'
