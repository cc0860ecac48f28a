_base_ = 'fpn_clustr_s_ade20k.py'

model = dict(backbone=dict(arch='tiny'))
