# Table 7, the column of ADE20K.
_base_ = '../fpn_clustr_t_ade20k.py'

model = dict(backbone=dict(reduction=(16, 4, 1, 1)))
train_first = 'configs/clustr/ablation/clustr_t_single_16_4_1_1_imagenet.py'
