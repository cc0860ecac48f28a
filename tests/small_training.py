"""A training whose start takes longer than its iterations."""

from clustr_mm.datasets import make_shapes
from tests.runs import ROOT

CONFIG = f"""
_base_ = '{ROOT}/configs/quickstart/deit_shapes.py'
model = dict(
    backbone=dict(
        arch=dict(
            embed_dims=24,
            num_layers=2,
            num_heads=2,
            feedforward_channels=32,
        )
    ),
    head=dict(in_channels=24),
)
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(96, 96)),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=0,
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(pipeline=pipeline),
)
val_dataloader = val_evaluator = val_cfg = None
test_dataloader = dict(num_workers=0)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=40)
]
train_cfg = dict(
    _delete_=True, type='IterBasedTrainLoop', max_iters=4, val_interval=1000
)
log_processor = dict(by_epoch=False)
default_hooks = dict(
    logger=dict(interval=1, log_metric_by_epoch=False),
    checkpoint=dict(
        interval=2, by_epoch=False, save_best=None, max_keep_ckpts=2
    ),
)
"""


def write(folder):
    """Config and data; return what to pass to the training and test tools."""
    config = folder / 'tiny.py'
    config.write_text(CONFIG)
    data = make_shapes('classification', folder / 'data', num=30, size=48)
    return [config, '--data-root', data, '--work-dir', folder / 'work']
