# The small ClusTR and Mask R-CNN of the quick start: garments on photographs,
# 128 x 128.
_base_ = '../quickstart/mask_rcnn_clustr_shapes.py'

data_root = 'data/study/garments_128'
image_size = (128, 128)
# fmt: off
metainfo = dict(
    classes=('shirt', 'trouser', 'pullover', 'dress', 'coat', 'sandal',
             'blouse', 'sneaker', 'bag', 'boot'),
)
# fmt: on
model = dict(
    roi_head=dict(
        bbox_head=dict(num_classes=10), mask_head=dict(num_classes=10)
    )
)
train_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='train.json',
        data_prefix=dict(img='images/train/'),
    ),
)
val_dataloader = dict(
    num_workers=0,
    persistent_workers=False,
    dataset=dict(
        data_root=data_root,
        metainfo=metainfo,
        ann_file='test.json',
        data_prefix=dict(img='images/test/'),
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=f'{data_root}/test.json')
test_evaluator = val_evaluator
max_epochs = 8
param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], T_max=max_epochs),
]
train_cfg = dict(max_epochs=max_epochs, val_interval=2)
default_hooks = dict(checkpoint=dict(save_best='coco/segm_mAP'))
