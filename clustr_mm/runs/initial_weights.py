"""Whether the files that a training starts from are there."""

from pathlib import Path

from mmengine.config import Config

from clustr_mm import configs
from clustr_mm.checkpoints import published
from clustr_mm.errors import UserError


def initial_weights_are_there(cfg: Config) -> Config:
    """Raise an error that says what to do about those that are not."""
    if cfg.get('resume'):
        return cfg
    for path, part in configs.walk(cfg.model, 'model'):
        for key in ('checkpoint', 'pretrained'):
            if isinstance(part.get(key), str):
                _check_is_there(part[key], f'{path}.{key}')
    if cfg.get('load_from'):
        _check_is_there(cfg.load_from, 'load_from')
    return cfg


def _check_is_there(checkpoint: str, where: str):
    if published.is_name(checkpoint):
        published.check(checkpoint)
    elif '://' not in checkpoint and not Path(checkpoint).is_file():
        unset = where.removesuffix('.checkpoint')  # of an init_cfg
        raise UserError(
            f'{where} is {checkpoint}, which does not exist. The head of the '
            'config says where it comes from. If it is elsewhere, say so by '
            f'--cfg-options {where}=FILE; to start without it, by '
            f'{unset}=None'
        )
