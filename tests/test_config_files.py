"""Configs that inherit from this package's by its name."""

import pytest
from mmengine.config import Config

from clustr_mm import config_files
from clustr_mm.errors import UserError


def test_scope_is_dropped_where_it_is_ours():
    cfg = Config(
        dict(
            model=dict(type='A', _scope_='clustr_mm', neck=[dict(type='B')]),
            hooks=[dict(type='C', _scope_='clustr_mm')],
            other=dict(type='D', _scope_='mmdet'),
        )
    )
    config_files._drop_scope(cfg._cfg_dict)
    assert cfg.to_dict() == dict(
        model=dict(type='A', neck=[dict(type='B')]),
        hooks=[dict(type='C')],
        other=dict(type='D', _scope_='mmdet'),
    )


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match='no config file'):
        config_files.read(tmp_path / 'no.py')
