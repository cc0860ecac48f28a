"""Token-thinning backbones for OpenMMLab.

Importing the package registers its models in MMEngine's root registries,
where all toolboxes find them. What a training needs besides is registered by
``clustr_mm.training``, ``clustr_mm.visualization`` and ``clustr_mm.runs``,
which a config names in its ``custom_imports``; our tools import them anyway.
"""

from typing import Any

from .dependencies import require
from .version import __version__

for _name in ('torch', 'mmengine', 'mmcv'):
    require(_name)

from mmengine.config.utils import MODULE2PACKAGE  # noqa: E402
from mmengine.runner.checkpoint import CheckpointLoader  # noqa: E402

from . import backbones, necks  # noqa: E402

# Configs inherit from ours by _base_ = 'clustr_mm::folder/file.py'.
MODULE2PACKAGE.setdefault(__name__, __name__)


@CheckpointLoader.register_scheme(prefixes='published:', force=True)
def load_from_published(name: str, map_location: Any = None) -> dict:
    """What a config means by ``published:NAME``."""
    from .checkpoints import published

    return published.load(name)


def __getattr__(name: str) -> Any:
    """What is imported when it is first used."""
    if name in ('get_backbone', 'get_model', 'list_models', 'thin'):
        from . import zoo

        return getattr(zoo, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def config_file(name: str) -> str:
    """Path of one of our configs, wherever the package is.

    A config that other toolboxes' scripts shall read, too, inherits by
    ``_base_ = __import__('clustr_mm').config_file('folder/file.py')``: they
    know ``clustr_mm::`` only once the package is imported, and take what
    comes from there for a toolbox of its own.
    """
    from .configs import config_folder
    from .errors import UserError

    path = config_folder() / name
    if not path.is_file():
        raise UserError(f'{path.parent} has no config {path.name}')
    return str(path)


__all__ = [
    '__version__',
    'backbones',
    'config_file',
    'get_backbone',
    'get_model',
    'list_models',
    'necks',
    'thin',
]
