"""Models by name, from Python."""

import sys

import pytest
import torch
from mmengine.registry import DefaultScope, init_default_scope

import clustr_mm
from clustr_mm.checkpoints import published
from clustr_mm.errors import UserError
from tests.runs import ROOT, run

needs_mmpretrain = pytest.mark.skipif(
    'not __import__("importlib.util").util.find_spec("mmpretrain")',
    reason='its classifiers are of MMPretrain',
)


def test_list():
    names = clustr_mm.list_models()
    there = {
        path.stem
        for path in (ROOT / 'configs').rglob('*.py')
        if not {'_base_', 'quickstart', 'study'}.intersection(
            path.relative_to(ROOT).parts
        )
    }
    assert names == sorted(there)
    assert clustr_mm.list_models('evit_s_k0?_imagenet') == [
        f'evit_s_k0{i}_imagenet' for i in range(5, 10)
    ]
    assert clustr_mm.list_models('resnet*') == []


def test_list_those_with_weights():
    names = clustr_mm.list_models(pretrained=True)
    assert {'evit_s_k07_imagenet', 'deit_s_imagenet', 'hvt_s1_imagenet'} < set(
        names
    )
    # Only those of the config as it is.
    assert 'tome_ti_r8_imagenet' not in names
    assert not [name for name in names if 'clustr' in name]


@needs_mmpretrain
def test_model_with_published_weights():
    model = clustr_mm.get_model('evit_s_k07_imagenet', pretrained=True)
    assert not model.training
    theirs = published.load('published:evit-s-k07')
    ours = model.state_dict()
    assert all(
        torch.equal(ours[key], value)
        for key, value in theirs['state_dict'].items()
    )
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 224, 224)).shape == (1, 1000)


@needs_mmpretrain
def test_options_choose_the_weights(monkeypatch):
    asked = []
    load = published.load
    monkeypatch.setattr(
        published,
        'load',
        lambda name: asked.append(name) or load(name),
    )
    options = {'model.backbone.fuse': False}
    model = clustr_mm.get_model('evit_s_k07', True, options)
    assert asked == ['published:evit-s-k07-nofuse']
    assert not model.backbone.reducers[0].fuse
    # Named ones, whatever the config is.
    clustr_mm.get_model('tome_s_r8', pretrained='published:deit-small')
    assert asked[1:] == ['published:deit-small']


def test_backbone_with_a_file_of_ones_own(tmp_path):
    backbone = clustr_mm.get_backbone('clustr_t', out_indices=(0, 3))
    state = {f'backbone.{k}': v for k, v in backbone.state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / 'mine.pth')
    again = clustr_mm.get_backbone(
        'clustr_t', pretrained=tmp_path / 'mine.pth', out_indices=(0, 3)
    )
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        outs, same = backbone(x), again(x)
    assert [out.shape[1:] for out in outs] == [(64, 16, 16), (512, 2, 2)]
    assert all(torch.equal(a, b) for a, b in zip(outs, same))


def test_backbone_of_a_dense_config_with_published_weights():
    """Its config names them, but nothing is loaded unless asked for."""
    backbone = clustr_mm.get_backbone(
        'pose_evit_s_k07_wholebody', pretrained='published:deit-small'
    )
    theirs = published.load('published:deit-small')
    assert torch.equal(
        backbone.cls_token, theirs['state_dict']['backbone.cls_token']
    )
    assert backbone(torch.zeros(1, 3, 64, 64))[0].shape == (1, 384, 4, 4)


@pytest.mark.parametrize(
    ('name', 'close'),
    [
        ('evit_s_k7_imagenet', 'evit_s_k07_imagenet'),
        ('clustr_x', 'clustr_'),
        ('???', r'list_models\(\)'),
    ],
)
def test_wrong_names(name, close):
    with pytest.raises(UserError, match=f'there is no model .*{close}'):
        clustr_mm.get_model(name)


def test_weights_that_nobody_has_published():
    with pytest.raises(UserError, match='nobody has published weights of clu'):
        clustr_mm.get_backbone('clustr_s', pretrained=True)


def test_wrong_options():
    with pytest.raises(UserError, match='the backbone of clustr_s cannot be'):
        clustr_mm.get_backbone('clustr_s', out_indeces=(3,))
    with pytest.raises(UserError, match='has no mode'):
        clustr_mm.get_model('hvt_s1', options={'mode.backbone.arch': 's-2'})


@pytest.mark.parametrize(
    ('call', 'said'),
    [
        (lambda: clustr_mm.get_model(3), 'name of get_model must be .* 3'),
        (lambda: clustr_mm.list_models(3), 'pattern of list_models'),
        (lambda: clustr_mm.list_models(pretrained='x'), 'pretrained of list'),
        (lambda: clustr_mm.get_model('hvt_s1', None), 'pretrained of get_mod'),
        (lambda: clustr_mm.get_model('hvt_s1', False, ['x']), 'options of'),
        (lambda: clustr_mm.get_backbone('hvt_s1', 3), 'pretrained of get_ba'),
    ],
)
def test_arguments_of_the_wrong_type(call, said):
    with pytest.raises(TypeError, match=said):
        call()


@pytest.mark.parametrize(
    ('weights', 'said'),
    [
        ('published:hvt-s1', 'take published:hvt-s-1'),
        ('no.pth', 'there is no checkpoint no.pth'),
        ('published:evit-s-k07', 'lacks .* weights|of another model'),
    ],
)
def test_wrong_weights(weights, said):
    with pytest.raises(UserError, match=said):
        clustr_mm.get_backbone('hvt_s1', pretrained=weights)


def test_a_backbone_changes_nobodys_scope():
    """An inferencer of MMPretrain would not find its transforms."""
    init_default_scope('mmpretrain')
    clustr_mm.get_backbone('hvt_ti1')
    assert DefaultScope.get_current_instance().scope_name == 'mmpretrain'


def test_no_toolbox_is_imported():
    """Neither for the package nor for a backbone."""
    run(
        sys.executable,
        '-c',
        'import sys, clustr_mm\n'
        "clustr_mm.get_backbone('clustr_t')\n"
        "found = {'mmpretrain', 'mmseg', 'mmdet', 'mmpose'} & set(sys.modules)"
        '\nassert not found, found',
        cwd=ROOT,
    )
