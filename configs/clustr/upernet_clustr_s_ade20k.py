# Table A3: 160k iterations of AdamW at 6e-5, batch 16, drop path 0.1. Nobody
# has published weights. To start from yours, as the paper does from its own:
#   --cfg-options model.backbone.init_cfg.type=Pretrained
#   model.backbone.init_cfg.checkpoint=FILE
#   model.backbone.init_cfg.prefix=backbone.
_base_ = ['../_base_/upernet_ade20k.py', '../_base_/backbones/clustr_s.py']

model = dict(
    backbone=_base_.clustr_s,
    decode_head=dict(in_channels=[64, 128, 256, 512]),
    auxiliary_head=dict(in_channels=256),
)
train_first = 'configs/clustr/clustr_s_imagenet.py'
