# Table 7, a single scale; in table 6 the clusters to compare with.
_base_ = 'clustr_t_100e_imagenet.py'

model = dict(backbone=dict(reduction=(64, 16, 4, 1)))
