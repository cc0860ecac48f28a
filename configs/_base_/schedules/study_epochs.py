# A cosine over 8 epochs, of which a half is to warm up. The study sets other
# lengths by options.
_base_ = 'shapes_20e.py'

optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
max_epochs = 8
param_scheduler = [
    dict(_base_.param_scheduler[0], end=0.5),
    dict(_base_.param_scheduler[1], T_max=max_epochs, begin=0, end=max_epochs),
]
train_cfg = dict(max_epochs=max_epochs, val_interval=1)
