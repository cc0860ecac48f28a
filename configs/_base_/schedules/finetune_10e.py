# 10 epochs of AdamW at 1e-4, with the weight decay that PyTorch gives it.
_base_ = 'adamw_vit.py'

train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=10, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
