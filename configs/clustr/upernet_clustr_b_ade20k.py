_base_ = 'upernet_clustr_s_ade20k.py'

model = dict(
    backbone=dict(arch='base', drop_path_rate=0.3),
    decode_head=dict(in_channels=[64, 128, 320, 512]),
    auxiliary_head=dict(in_channels=320),
)
