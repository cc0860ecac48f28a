"""Token-thinning backbones for OpenMMLab.

Importing the package registers its modules in MMEngine's root registries,
where all toolboxes find them.
"""

from .dependencies import require
from .version import __version__

for _name in ('torch', 'mmengine', 'mmcv'):
    require(_name)

from . import (  # noqa: E402
    backbones,
    host,
    necks,
    training,
    visualization,
)

__all__ = [
    '__version__',
    'backbones',
    'host',
    'necks',
    'training',
    'visualization',
]
