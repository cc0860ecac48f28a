"""Every config is built, counted and run forward and backward."""

import gc

import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from torch.nn.modules.batchnorm import _BatchNorm

from clustr_mm.analysis.paper import rows
from tests.runs import ROOT
from tests.samples import batch

CONFIGS = sorted(
    str(path.relative_to(ROOT / 'configs'))
    for path in (ROOT / 'configs').rglob('*.py')
    if '_base_' not in path.parts
)

# Millions of parameters, of models and not only backbones.
PRINTED = {
    row.config: float(row.params.number)
    for row in rows()
    if row.paper == 'ClusTR'
}


@pytest.fixture(autouse=True)
def _clean():
    yield
    init_default_scope('mmengine')
    # Models are in cycles of references; a few large ones fill the memory.
    gc.collect()


def build(name):
    cfg = Config.fromfile(ROOT / 'configs' / name)
    pytest.importorskip(cfg.default_scope)
    init_default_scope(cfg.default_scope)
    cfg.model = without_sync_bn(cfg.model)
    return cfg, MODELS.build(cfg.model)


def without_sync_bn(node):
    if isinstance(node, dict):
        node = type(node)({k: without_sync_bn(v) for k, v in node.items()})
        if node.get('type') == 'SyncBN':
            node['type'] = 'BN'
    return node


@pytest.mark.parametrize('name', CONFIGS)
def test_config(name):
    cfg, model = build(name)
    count = sum(p.numel() for p in model.parameters()) / 1e6
    if name in PRINTED:
        # The last digit is rounded in some tables and cut off in others.
        assert PRINTED[name] in (round(count, 1), int(10 * count) / 10)

    size = (128, 96) if cfg.default_scope == 'mmpose' else (64, 64)
    if cfg.model.type == 'KeepSearch':
        # It has parameters for the tokens of images of one size.
        size = 2 * (cfg.model.backbone.get('img_size', 224),)
    if cfg.default_scope == 'mmseg':
        model.data_preprocessor.size = size
    model.train()
    data = model.data_preprocessor(batch(cfg.default_scope, cfg, size), True)
    losses, _ = model.parse_losses(model(**data, mode='loss'))
    losses.backward()
    assert losses.isfinite()
    # One without a gradient, unless it is frozen, would stop a distributed
    # run.
    idle = [
        name
        for name, param in model.named_parameters()
        if param.requires_grad and param.grad is None
    ]
    assert not idle

    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    decayed = {
        id(p)
        for group in optimizer.param_groups
        if group['weight_decay'] > 0
        for p in group['params']
    }
    for module in model.modules():
        if isinstance(module, (torch.nn.LayerNorm, _BatchNorm)):
            assert not decayed & {id(p) for p in module.parameters()}
