"""Trainings whose start takes longer than their iterations."""

import copy
import itertools
import json

from mmengine.config import Config

from clustr_mm.runs import data_paths
from clustr_mm.shapes import make_shapes
from tests.runs import ROOT
from tests.tiny_models import clustr_arch, vit_arch

CONFIG = f"""
_base_ = '{ROOT}/configs/quickstart/deit_shapes.py'
model = dict(
    backbone=dict(
        arch={vit_arch(24, 2, 2)}
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

# A change of it. It draws Python's, NumPy's and torch's random numbers.
RANDOM = """
model.setdefault('backbone', {}).update(drop_path_rate=0.3, drop_rate=0.1)
train_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='RandomResizedCrop', scale=96),
            dict(type='RandomFlip', prob=0.5),
            dict(type='ColorJitter', brightness=0.4, contrast=0.4),
            dict(type='PackInputs'),
        ]
    )
)
"""

# Changes of its model, for a training of each backbone. Those of DynamicViT
# learn what to keep, without a teacher.
SPARSE = dict(
    type='SparseClassifier',
    kl_weight=0.0,
    token_weight=0.0,
)
BACKBONES = {
    'ClusTR': dict(
        backbone=dict(
            _delete_=True,
            type='ClusTR',
            arch=clustr_arch((2, 1, 1, 1)),
            reuse=True,
            out_indices=(3,),
        ),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(in_channels=32),
    ),
    'HVT': dict(backbone=dict(type='HVT', num_stages=2)),
    'TokenPoolingDeiT': dict(
        backbone=dict(type='TokenPoolingDeiT', keep=[36, 16])
    ),
    'EViT': dict(backbone=dict(type='EViT', keep=0.5, reduce_at=[1])),
    'DynamicViT': dict(
        SPARSE, backbone=dict(type='DynamicViT', keep=[0.5], reduce_at=[1])
    ),
    'DynamicLVViT': dict(
        SPARSE,
        backbone=dict(
            type='DynamicLVViT', keep=[0.5], reduce_at=[1], stem_channels=16
        ),
        head=dict(type='TokenLabelHead'),
    ),
    'ToMe': dict(backbone=dict(type='ToMe', merge=16)),
}
IMPORTS = ['clustr_mm', 'clustr_mm.training.sparsification']


def write(folder, backbone=None, random=False):
    """Config and data; return what to pass to the training and test tools."""
    config = folder / 'tiny.py'
    config.write_text(CONFIG)
    if backbone is not None or random:
        config = folder / 'other.py'
        model = BACKBONES.get(backbone, {})
        config.write_text(
            f"_base_ = 'tiny.py'\nmodel = {model}\n"
            f'custom_imports = dict(imports={IMPORTS})\n'
            f'{RANDOM if random else ""}'
        )
    data = make_shapes('classification', folder / 'data', num=30, size=48)
    return [config, '--data-root', data, '--work-dir', folder / 'work']


_COUNT = itertools.count()


def config(folder, backbone=None, random=False, **options):
    """The same as a config, for a run in this process."""
    path, _, data, _, work = write(folder, backbone, random)
    cfg = Config.fromfile(path)
    data_paths.move_root(cfg, data)
    # No two runners may have the same name.
    name = f'small_training_{next(_COUNT)}'
    cfg.merge_from_dict(
        dict(work_dir=str(work), experiment_name=name, **options)
    )
    return cfg


def count_epochs(cfg, epochs):
    """Of six iterations, with a validation and a checkpoint after each."""
    cfg.train_cfg = dict(by_epoch=True, max_epochs=epochs, val_interval=1)
    cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
    cfg.train_dataloader.persistent_workers = False
    cfg.val_dataloader = copy.deepcopy(cfg.train_dataloader)
    cfg.val_cfg = {}
    cfg.val_evaluator = dict(type='Accuracy')
    cfg.log_processor.by_epoch = True
    cfg.default_hooks.logger.log_metric_by_epoch = True
    cfg.default_hooks.checkpoint.update(by_epoch=True, interval=1)


def logged(work):
    """Rows of the logs of a work dir."""
    paths = sorted(work.glob('*/vis_data/scalars.json'))
    lines = [
        line
        for path in paths
        for line in path.read_text().splitlines(keepends=True)
    ]
    # A kill may have cut the last one off.
    return [json.loads(line) for line in lines if line.endswith('\n')]
