"""Configs that inherit from this package's by its name."""

import re
import sys

import pytest
from mmengine.config import Config

import clustr_mm
from clustr_mm import configs
from clustr_mm.errors import UserError
from tests.runs import ROOT, run

# As a toolbox's own script, which imports nothing of ours.
BUILDS = """
import sys
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
cfg = Config.fromfile(sys.argv[1])
init_default_scope(cfg.default_scope)
model = MODELS.build(cfg.model)
print(type(model).__name__, type(model.backbone).__name__)
print(model.decode_head.num_classes)
"""


def test_scope_is_dropped_where_it_is_ours():
    cfg = Config(
        dict(
            model=dict(type='A', _scope_='clustr_mm', neck=[dict(type='B')]),
            hooks=[dict(type='C', _scope_='clustr_mm')],
            other=dict(type='D', _scope_='mmdet'),
        )
    )
    configs._drop_scope(cfg._cfg_dict)
    assert cfg.to_dict() == dict(
        model=dict(type='A', neck=[dict(type='B')]),
        hooks=[dict(type='C')],
        other=dict(type='D', _scope_='mmdet'),
    )


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match='no config file'):
        configs.read(tmp_path / 'no.py')


def test_other_scripts_inherit_from_ours(tmp_path):
    """By the lines that the page has."""
    pytest.importorskip('mmseg')
    page = (ROOT / 'docs/tasks.md').read_text()
    blocks = re.findall(r'^```python\n(.*?)^```', page, re.M | re.S)
    (config,) = (block for block in blocks if 'config_file' in block)
    (tmp_path / 'mine.py').write_text(config)
    command = (sys.executable, '-c', BUILDS, 'mine.py')
    text = run(*command, cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert text.splitlines()[-2:] == ['EncoderDecoder ClusTR', '7']


def test_config_that_is_not_ours():
    with pytest.raises(UserError, match='has no config none.py'):
        clustr_mm.config_file('clustr/none.py')
