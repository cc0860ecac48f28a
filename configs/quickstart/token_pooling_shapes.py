# Token Pooling in the model of deit_shapes.py. The list is one that
# search_deit_shapes.py found.
_base_ = '../_base_/finetune_shapes.py'

model = dict(
    backbone=dict(type='TokenPoolingDeiT', keep=[48, 26, 14, 2, 2, 0])
)
load_from = 'work_dirs/deit_shapes/epoch_20.pth'
