# Table 7, the column of ADE20K.
_base_ = '../fpn_clustr_t_ade20k.py'

model = dict(backbone=dict(reduction=(64, 16, 4, 1)))
