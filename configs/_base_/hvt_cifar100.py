# HVT on CIFAR-100 (section 5), whose pictures are enlarged to 224 x 224 and
# augmented like ImageNet's. A batch has 128 of them.
_base_ = 'hvt_imagenet.py'

dataset = dict(
    _delete_=True, type='CIFAR100', data_root='data/cifar100', download=False
)
# One file has all pictures: there is none to load.
train_pipeline = _base_.train_pipeline[1:]
test_pipeline = [
    dict(type='Resize', scale=224, backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    dataset=dict(dataset, split='train', pipeline=train_pipeline)
)
val_dataloader = dict(
    dataset=dict(dataset, split='test', pipeline=test_pipeline)
)
test_dataloader = val_dataloader
model = dict(
    data_preprocessor=dict(num_classes=100), head=dict(num_classes=100)
)
optim_wrapper = dict(optimizer=dict(lr=1.25e-4))
auto_scale_lr = dict(base_batch_size=128)
