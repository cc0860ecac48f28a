# 0.7 of the patches stay from the fourth block on, 0.49 from the seventh and
# 0.34 from the tenth; those that leave keep the values that they left with. In
# training attention ignores them instead, and the predictors learn from the
# loss of the task alone: start from a DynamicViT trained on ImageNet.
_base_ = '../_base_/retinanet_vit_coco.py'

model = dict(
    backbone=dict(
        type='DynamicViT',
        arch='deit-small',
        keep=0.7,
        out_type='featmap',
        drop_path_rate=0.1,
    )
)
