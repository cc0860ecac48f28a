# One pooling, after the first block: half the tokens from there on. Maps are
# interpolated from the pooled sequence.
_base_ = '../_base_/retinanet_vit_coco.py'

model = dict(
    backbone=dict(
        type='HVT',
        arch='s-1',
        out_type='featmap',
        drop_path_rate=0.1,
    )
)
