# Intel Image Classification: seg_train/seg_train/ and seg_test/seg_test/ with
# one folder a class.
_base_ = 'imagenette.py'

data_root = 'data/intel'
train_dataloader = dict(
    dataset=dict(data_root=data_root, data_prefix='seg_train/seg_train')
)
val_dataloader = dict(
    dataset=dict(data_root=data_root, data_prefix='seg_test/seg_test')
)
test_dataloader = val_dataloader
