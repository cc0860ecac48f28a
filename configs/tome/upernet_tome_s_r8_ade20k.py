# 8 of the 196 patches of a 224 x 224 image are merged by each block, and in
# proportion of others: the map is still full, and half of its tokens are left.
_base_ = '../_base_/upernet_vit_ade20k.py'

model = dict(
    backbone=dict(
        type='ToMe',
        arch='deit-small',
        merge=8,
        out_type='featmap',
        drop_path_rate=0.1,
    )
)
