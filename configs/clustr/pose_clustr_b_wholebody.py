_base_ = ['pose_clustr_s_wholebody.py', '../_base_/backbones/clustr_b.py']

model = dict(backbone=_base_.clustr_b)
train_first = 'configs/clustr/clustr_b_imagenet.py'
