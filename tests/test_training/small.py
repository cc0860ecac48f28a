"""Small models, and data for them."""

import itertools

import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner

from tests.tiny_models import TRAINED

SIZE = TRAINED['img_size']
# No two runners may have the same name.
_COUNT = itertools.count()


def classifier(kind, **changes):
    """A small classifier of three classes."""
    cfg = ConfigDict(
        type='ImageClassifier',
        backbone=dict(TRAINED, type=kind),
        head=dict(type='LinearClsHead', num_classes=3, in_channels=32),
    )
    for key, value in changes.items():
        if isinstance(value, dict):
            value = dict(value)
            if value.pop('_delete_', False):
                value.update(num_classes=3, in_channels=32)
                cfg[key] = value
            else:
                cfg[key].update(value)
        else:
            cfg[key] = value
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        return MODELS.build(cfg)


def images(num):
    return torch.randn(num, 3, SIZE, SIZE)


def samples(num):
    from mmpretrain.structures import DataSample

    return [DataSample().set_gt_label(i % 3) for i in range(num)]


class Pictures(torch.utils.data.Dataset):
    """Generated pictures, as a loader gives them to a classifier."""

    def __init__(self, num=8):
        self.images = torch.randint(0, 256, (num, 3, SIZE, SIZE)).byte()
        self.samples = samples(num)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return dict(inputs=self.images[i], data_samples=self.samples[i])


def runner(model, work_dir, epochs=4, hooks=(), optim_wrapper=None, **kwargs):
    """A runner of four iterations an epoch."""
    cfg = dict(
        model=model,
        work_dir=str(work_dir),
        experiment_name=f'small_{next(_COUNT)}',
        train_dataloader=dict(
            batch_size=2,
            num_workers=0,
            dataset=Pictures(),
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='default_collate'),
        ),
        train_cfg=dict(by_epoch=True, max_epochs=epochs),
        optim_wrapper=optim_wrapper
        or dict(optimizer=dict(type='AdamW', lr=1e-3)),
        custom_hooks=list(hooks),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook')),
        default_scope='mmpretrain',
        log_level='ERROR',
    )
    return Runner(**{**cfg, **kwargs})
