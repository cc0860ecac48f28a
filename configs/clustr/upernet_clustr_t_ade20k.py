_base_ = 'upernet_clustr_s_ade20k.py'

model = dict(backbone=dict(arch='tiny'))
