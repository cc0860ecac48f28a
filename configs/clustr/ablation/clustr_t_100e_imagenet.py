# Tables 6 and 7 train the tiny model for 100 epochs.
_base_ = '../clustr_t_imagenet.py'

param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], T_max=95, end=100),
]
train_cfg = dict(max_epochs=100)
