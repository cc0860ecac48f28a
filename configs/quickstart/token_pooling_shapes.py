# Token Pooling in the model of deit_shapes.py. The list is an example of what
# search_deit_shapes.py finds.
_base_ = '../_base_/finetune_shapes.py'

model = dict(
    backbone=dict(type='TokenPoolingDeiT', keep=[56, 48, 40, 32, 16, 0])
)
load_from = 'work_dirs/deit_shapes/epoch_20.pth'
