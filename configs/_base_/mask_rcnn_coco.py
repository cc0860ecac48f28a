# Mask R-CNN on COCO; a config adds the backbone.
_base_ = [
    'models/mask_rcnn.py',
    'datasets/coco_instance.py',
    'schedules/coco_1x.py',
    'runtime_mmdet.py',
]

optim_wrapper = dict(optimizer=dict(lr=2e-4))
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP'))
