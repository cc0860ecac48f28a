# Table 7, a single scale with more clusters.
_base_ = 'clustr_t_100e_imagenet.py'

model = dict(backbone=dict(reduction=(16, 4, 1, 1)))
