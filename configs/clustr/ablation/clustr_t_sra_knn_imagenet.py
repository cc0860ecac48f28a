# Table 6: spatial reduction with k-NN attention.
_base_ = 'clustr_t_100e_imagenet.py'

model = dict(backbone=dict(attention='sra_knn'))
