"""Config files, also those that inherit from the ones of this package.

MMEngine resolves ``_base_ = 'clustr_mm::evit/fpn_evit_s_k07_ade20k.py'`` for
packages that it has on a list, and marks what comes from there with the
package's scope. This package has none, as its modules are in the root
registries: a model so marked would not find the toolbox's.
"""

import argparse
from pathlib import Path

from mmengine.config import Config, DictAction
from mmengine.config.utils import MODULE2PACKAGE

from .errors import UserError

_NAME = __package__
MODULE2PACKAGE.setdefault(_NAME, _NAME)


def add_options(parser: argparse.ArgumentParser):
    """Add the argument that overrides parts of a config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        metavar='KEY=VALUE',
        help='override parts of the config: a.b=1, a.b=x,y or '
        'a.b="[(x,y),(z,w)]" without white space',
    )


def read(path: str | Path) -> Config:
    """Read a config file."""
    if not Path(path).is_file():
        raise UserError(f'there is no config file {path}')
    cfg = Config.fromfile(path)
    _drop_scope(cfg._cfg_dict)
    return cfg


def _drop_scope(node):
    """Remove our mark everywhere below ``node``."""
    if isinstance(node, dict):
        if node.get('_scope_') == _NAME:
            del node['_scope_']
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return
    for child in node:
        _drop_scope(child)
