_base_ = 'mask_rcnn_clustr_s_coco.py'

model = dict(backbone=dict(arch='tiny'))
