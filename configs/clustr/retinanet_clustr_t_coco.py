_base_ = ['retinanet_clustr_s_coco.py', '../_base_/backbones/clustr_t.py']

model = dict(backbone=_base_.clustr_t)
train_first = 'configs/clustr/clustr_t_imagenet.py'
