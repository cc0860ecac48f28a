# Stage 3: DeiT-S with Token Pooling, for the sparsity level 3 of table 3.
# Like DeiT-2x it restarts the schedule from the trained DeiT-S.
_base_ = 'deit_s_2x_imagenet.py'

model = dict(
    backbone=dict(
        type='TokenPoolingDeiT',
        keep=3,
        method='kmedoids',
        weighted=True,
    )
)
