_base_ = 'retinanet_clustr_s_coco.py'

model = dict(backbone=dict(arch='tiny'))
