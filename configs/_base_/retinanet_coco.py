# RetinaNet on COCO; a config adds the backbone.
_base_ = [
    'models/retinanet.py',
    'datasets/coco_detection.py',
    'schedules/coco_1x.py',
    'runtime_mmdet.py',
]

optim_wrapper = dict(optimizer=dict(lr=1e-4))
default_hooks = dict(checkpoint=dict(save_best='coco/bbox_mAP'))
