# Table 7.
_base_ = '../hvt_s4_cifar100.py'

size = 320
train_pipeline = _base_.train_pipeline
train_pipeline[0].update(scale=size)
test_pipeline = _base_.test_pipeline
test_pipeline[0].update(scale=size)
model = dict(backbone=dict(img_size=size))
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
