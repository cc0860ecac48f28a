"""The search from the command line."""

import sys
from importlib import import_module

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from clustr_mm.errors import UserError
from clustr_mm.shapes import make_shapes
from tests.runs import ROOT, TOOLS, run_tool

pytest.importorskip('mmpretrain')

QUICK = ROOT / 'configs/quickstart'
SEARCH = QUICK / 'search_deit_shapes.py'
BASE = QUICK / 'token_pooling_shapes.py'


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    out = tmp_path_factory.mktemp('shapes')
    return make_shapes('classification', out, num=20, val=0.5)


def options(data):
    return [
        *('--data-root', data, '--work-dir', 'work', '--cfg-options'),
        'train_dataloader.batch_size=2',
        'train_dataloader.num_workers=0',
        'train_cfg.max_epochs=1',
        'train_cfg.val_interval=9',
        'load_from=None',
        # A few large steps in place of many.
        'optim_wrapper.optimizer.lr=2e-3',
    ]


def test_writes_a_config_that_token_pooling_takes(data, tmp_path):
    log = run_tool(
        *('search_keep.py', SEARCH, '--base', BASE, '--out', 'found/list.py'),
        *('--lambda', 0.3, *options(data)),
        cwd=tmp_path,
    )
    found = Config.fromfile(tmp_path / 'found/list.py')
    keep = found.model.backbone.keep
    assert len(keep) == 6
    assert keep == sorted(keep, reverse=True)
    assert keep[0] < 64
    assert f'keep = {keep}' in log
    assert 'lambda 0.3' in (tmp_path / 'found/list.py').read_text()
    # The rest is what the base says.
    base = Config.fromfile(BASE)
    assert found.train_cfg == base.train_cfg
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(found.model)
    inputs = torch.rand(1, 3, 96, 96)
    outs, trail = model.backbone.eval().trace(inputs)
    assert outs[-1].shape == (1, 96)
    assert trail.owner.unique().numel() <= 64


@pytest.fixture(scope='module')
def tool():
    sys.path.insert(0, str(TOOLS))
    try:
        return import_module('search_keep')
    finally:
        sys.path.remove(str(TOOLS))


@pytest.mark.parametrize(
    ('config', 'base', 'out', 'message'),
    [
        (BASE, BASE, 'new.py', 'needs a config whose model is a KeepSearch'),
        (SEARCH, 'no.py', 'new.py', 'there is no config file no.py'),
        (SEARCH, QUICK / 'deit_shapes.py', 'new.py', 'is ThinViT'),
        (SEARCH, BASE, 'old.py', 'must be a new .py file'),
        (SEARCH, BASE, 'new.txt', 'must be a new .py file'),
    ],
)
def test_errors_come_before_the_search(
    tool, config, base, out, message, tmp_path
):
    (tmp_path / 'old.py').touch()
    with pytest.raises(UserError, match=message):
        tool.check(Config.fromfile(config), str(base), str(tmp_path / out))
    tool.check(Config.fromfile(SEARCH), str(BASE), str(tmp_path / 'new.py'))


def test_an_error_is_one_paragraph(tmp_path):
    text = run_tool(
        *('search_keep.py', SEARCH, '--base', BASE, '--out', 'new.py'),
        cwd=tmp_path,
        ok=False,
    )
    assert '--data-root DIR' in text
    assert 'Traceback' not in text
