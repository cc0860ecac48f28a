# Table 6: spatial reduction instead of clusters.
_base_ = 'clustr_t_100e_imagenet.py'

model = dict(backbone=dict(attention='sra'))
