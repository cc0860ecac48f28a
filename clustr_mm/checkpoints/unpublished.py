"""Weights that nobody has published, and what to train for them.

A config whose recipe starts from such weights names the config that makes
them by ``train_first``.
"""

import logging
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log


def say_if_random(cfg: Config) -> Config:
    """Say so if a training starts without the weights of its recipe."""
    first = cfg.get('train_first')
    if first is None or cfg.get('resume') or _has_weights(cfg):
        return cfg
    init_cfg = 'model.backbone.init_cfg'
    print_log(
        f'{Path(cfg.filename).stem} starts from random weights, as nobody has '
        f'published those that its recipe starts from: train {first} first, '
        f'then pass --cfg-options {init_cfg}.type=Pretrained '
        f'{init_cfg}.prefix=backbone. {init_cfg}.checkpoint=FILE',
        level=logging.WARNING,
    )
    return cfg


def _has_weights(cfg: Config) -> bool:
    """Whether the run, its model or its backbone starts from a file."""
    model = cfg.model
    inits = [
        part.get('init_cfg') for part in (model, model.get('backbone', {}))
    ]
    return bool(cfg.get('load_from') or model.get('pretrained')) or any(
        isinstance(init, dict) and init.get('checkpoint') for init in inits
    )
