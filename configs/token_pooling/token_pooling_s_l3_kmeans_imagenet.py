# Table 3: K-Means.
_base_ = 'token_pooling_s_l3_imagenet.py'

model = dict(backbone=dict(method='kmeans'))
