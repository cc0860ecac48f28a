# Tables 6 and 7 train the tiny model for 100 epochs.
_base_ = '../clustr_t_imagenet.py'

param_scheduler = [
    dict(
        type='LinearLR',
        start_factor=1e-3,
        by_epoch=True,
        begin=0,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='CosineAnnealingLR',
        T_max=95,
        eta_min=1e-5,
        by_epoch=True,
        begin=5,
        end=100,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(max_epochs=100)
