"""`import clustr_mm` makes the backbones known under every toolbox's scope."""

import pytest
from mmengine.registry import DefaultScope, init_default_scope

import clustr_mm
from clustr_mm.backbones import __all__ as BACKBONES


@pytest.fixture(params=['mmpretrain', 'mmseg', 'mmdet', 'mmpose'])
def registry(request):
    toolbox = request.param
    pytest.importorskip(toolbox)
    before = DefaultScope.get_current_instance()
    init_default_scope(toolbox)
    module = __import__(f'{toolbox}.registry', fromlist=['MODELS'])
    yield module.MODELS
    init_default_scope(before.scope_name if before else 'mmengine')


@pytest.mark.parametrize('name', BACKBONES)
def test_found_from_every_scope(registry, name):
    assert registry.get(name) is getattr(clustr_mm.backbones, name)


def test_built_from_every_scope(registry):
    model = registry.build(dict(type='ClusTR', arch='tiny'))
    assert isinstance(model, clustr_mm.backbones.ClusTR)
