# Table A3: 160k iterations of AdamW at 6e-5, batch 16, drop path 0.1. To
# start from weights trained on ImageNet, as the paper does:
#   --cfg-options model.backbone.init_cfg.type=Pretrained
#   model.backbone.init_cfg.checkpoint=FILE
#   model.backbone.init_cfg.prefix=backbone.
_base_ = '../_base_/upernet_ade20k.py'

model = dict(
    backbone=dict(type='ClusTR', arch='small', drop_path_rate=0.1),
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256),
)
