# Mask R-CNN with a plain ViT, as in ViTDet: a pyramid from its last map.
_base_ = ['mask_rcnn_coco.py', 'models/dense_vit.py']

model = dict(
    backbone=_base_.dense_vit,
    neck=dict(
        _delete_=True,
        type='SimpleFPN',
        in_channels=384,
        out_channels=256,
        num_outs=5,
    ),
)
optim_wrapper = dict(
    _base_.layer_decay, optimizer=dict(lr=1e-4, weight_decay=0.1)
)
