# HVT on ImageNet (section 5): DeiT's training with half its weight decay and
# learning rate for a batch of 1024.
_base_ = 'classifier_vit_imagenet.py'

model = dict(backbone=dict(type='HVT', drop_path_rate=0.1))
optim_wrapper = dict(optimizer=dict(lr=5e-4, weight_decay=0.025))
