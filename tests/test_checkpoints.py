"""Published checkpoints: see the tests of each backbone for what they do."""

import os

import numpy as np
import pytest
import torch
from mmengine.logging import MessageHub
from torch import nn

from clustr_mm.backbones.dynamic_vit import DynamicViT
from clustr_mm.backbones.evit import EViT
from clustr_mm.backbones.hvt import HVT
from clustr_mm.backbones.lvvit import DynamicLVViT, LVViT
from clustr_mm.backbones.vit import ThinViT
from clustr_mm.checkpoints import replacements
from clustr_mm.checkpoints.layouts import (
    LAYOUTS,
    CheckpointError,
    convert,
    convert_file,
    read,
    revert,
)
from clustr_mm.errors import UserError
from tests.recorded import GOLDEN
from tests.runs import run_tool
from tests.tiny_models import SMALL

RECORDED = sorted(
    path.stem for path in GOLDEN.glob('*.pt') if 'losses' not in path.stem
)


def recorded(name):
    record = torch.load(GOLDEN / f'{name}.pt', weights_only=True)
    return record['state_dict'], name.split('_')[0]


def same(one, other):
    return one.keys() == other.keys() and all(
        torch.equal(one[key], other[key]) for key in one
    )


@pytest.mark.parametrize('name', RECORDED)
def test_both_ways_lose_nothing(name):
    published, source = recorded(name)
    ours = convert(published, source)
    assert all(key.startswith(('backbone.', 'head.')) for key in ours)
    assert same(revert(ours, source), published)
    assert list(revert(ours, source)) == list(published)


def published(source):
    """A state dict in the layout of a project, from our own models."""
    model, kwargs, head = {
        'deit': (EViT, {}, 'head.fc'),
        'evit': (EViT, {}, 'head.fc'),
        'dynamicvit': (DynamicViT, {}, 'head.fc'),
        'hvt': (HVT, {'num_stages': 2}, 'head.fc'),
        'lvvit': (LVViT, {}, 'head.fc'),
        'dinov2': (ThinViT, {'layer_scale_init_value': 0.1}, None),
        'timm-vit': (ThinViT, {'qkv_bias': False}, 'head.fc'),
        'mmpretrain-vit': (ThinViT, {}, 'head.layers.head'),
    }[source]
    model = model(**SMALL, **kwargs)
    ours = {f'backbone.{k}': v for k, v in model.state_dict().items()}
    if head:
        for key, value in nn.Linear(48, 5).state_dict().items():
            ours[f'{head}.{key}'] = value
    if source == 'dinov2':
        ours['unused.mask_token'] = torch.zeros(1, 48)
    return revert(ours, source), ours


@pytest.mark.parametrize('source', LAYOUTS)
def test_all_layouts(source):
    theirs, ours = published(source)
    assert same(convert(theirs, source), ours)


def test_names_of_dinov2():
    theirs, _ = published('dinov2')
    assert {'mask_token', 'blocks.5.ls2.gamma', 'norm.bias'} <= set(theirs)


def test_names_of_mmpretrain():
    backbones = pytest.importorskip('mmpretrain.models.backbones')
    model = backbones.VisionTransformer(
        **SMALL,
        out_type='avg_featmap',
        layer_scale_init_value=0.1,
    )
    theirs = {f'backbone.{k}': v for k, v in model.state_dict().items()}
    ours = ThinViT(**SMALL, out_type='avg_featmap', layer_scale_init_value=0.1)
    converted = convert(theirs, 'mmpretrain-vit')
    assert {f'backbone.{key}' for key in ours.state_dict()} == set(converted)
    assert same(revert(converted, 'mmpretrain-vit'), theirs)


AVERAGED = dict(out_type='avg_featmap', final_norm=False)
BOTH = ('weight', 'bias')


@pytest.mark.parametrize('with_cls_token', [True, False])
def test_timm_with_average_pooling(with_cls_token):
    """Its only norm is that of the mean."""
    model = ThinViT(**SMALL, **AVERAGED, with_cls_token=with_cls_token)
    ours = {f'backbone.{k}': v for k, v in model.state_dict().items()}
    theirs = revert(ours, 'timm-vit')
    assert {'fc_norm.weight', 'fc_norm.bias'} <= theirs.keys()
    assert not {'norm.weight', 'norm.bias'} & theirs.keys()
    assert same(convert(theirs, 'timm-vit'), ours)
    with pytest.raises(CheckpointError, match='looks like timm-vit'):
        convert(theirs, 'deit')


@pytest.mark.parametrize('norm', ['norm', 'fc_norm'])
def test_timm_has_one_norm_at_most(norm):
    model = ThinViT(**SMALL, **AVERAGED if norm == 'fc_norm' else {})
    ours = {f'backbone.{k}': v for k, v in model.state_dict().items()}
    theirs = revert(ours, 'timm-vit')
    half = theirs.pop(f'{norm}.bias')
    with pytest.raises(CheckpointError, match=rf'Missing: {norm}\.bias\.'):
        convert(theirs, 'timm-vit')
    # Neither, as timm's ViTs with final_norm=False have it.
    del theirs[f'{norm}.weight']
    without = ours.keys() - {f'backbone.{norm}.{k}' for k in BOTH}
    assert convert(theirs, 'timm-vit').keys() == without
    both = {
        f'{name}.{leaf}': half for name in ('norm', 'fc_norm') for leaf in BOTH
    }
    with pytest.raises(CheckpointError, match=r'Unexpected: norm\.bias, norm'):
        convert({**theirs, **both}, 'timm-vit')


def test_dense_lvvit():
    theirs, _ = published('lvvit')
    assert 'patch_embed.bn2.running_var' in theirs
    missing, unexpected = DynamicLVViT(**SMALL).load_state_dict(
        {
            key.removeprefix('backbone.'): value
            for key, value in convert(theirs, 'lvvit').items()
            if key.startswith('backbone.')
        },
        strict=False,
    )
    assert unexpected == []
    assert all('predictor' in key for key in missing)


def test_hvt_pooled_elsewhere():
    theirs, ours = published('hvt')
    theirs['blocks.5.pos_embed'] = theirs.pop('blocks.3.pos_embed')
    assert same(convert(theirs, 'hvt'), ours)
    assert same(revert(ours, 'hvt', reduce_at=[0, 5]), theirs)
    with pytest.raises(CheckpointError, match='2 stages'):
        revert(ours, 'hvt', reduce_at=[0])


def broken(source, how):
    state_dict, _ = published(source)
    how(state_dict)
    with pytest.raises(CheckpointError) as error:
        convert(state_dict, source)
    return str(error.value)


def test_missing_and_unexpected_are_listed():
    message = broken('deit', lambda d: d.pop('blocks.2.mlp.fc1.bias'))
    assert 'Missing: blocks.2.mlp.fc1.bias.' in message
    assert 'Unexpected: nothing' in message
    message = broken('deit', lambda d: d.update(dist_token=torch.ones(1)))
    assert 'Missing: nothing. Unexpected: dist_token.' in message
    # Half of what is optional as a whole.
    message = broken('deit', lambda d: d.pop('head.bias'))
    assert 'Missing: head.bias.' in message
    message = broken(
        'dynamicvit',
        lambda d: [
            d.pop(key)
            for key in list(d)
            if key.startswith('score_predictor.1.')
        ],
    )
    assert 'Missing: score_predictor.1.in_conv.0.bias' in message
    message = broken('dinov2', lambda d: d.pop('blocks.0.ls1.gamma'))
    assert 'Missing: blocks.0.ls1.gamma.' in message


def test_the_right_layout_is_named():
    state_dict, _ = published('dynamicvit')
    with pytest.raises(CheckpointError, match='It looks like dynamicvit'):
        convert(state_dict, 'deit')


@pytest.mark.parametrize('source', LAYOUTS)
@pytest.mark.parametrize(
    'state_dict',
    [
        {},
        {'weight': torch.ones(1)},
        {f'blocks.{10**9}.norm1.weight': torch.ones(1)},
        {'blocks.0.norm1.weight.1.x': torch.ones(1)},
    ],
)
def test_garbage(source, state_dict):
    with pytest.raises(CheckpointError, match='Missing: .* Unexpected: '):
        convert(state_dict, source)


def test_unknown_layout():
    with pytest.raises(CheckpointError, match="'swin': choose from"):
        convert({}, 'swin')


@pytest.mark.parametrize('wrap', ['model', 'state_dict', None])
def test_read(tmp_path, wrap):
    theirs, _ = published('deit')
    parallel = {f'module.{key}': value for key, value in theirs.items()}
    torch.save({wrap: parallel} if wrap else parallel, tmp_path / 'deit.pth')
    assert same(read(tmp_path / 'deit.pth'), theirs)


class Bomb:
    """Loading this runs a command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_foreign_code_does_not_run(tmp_path):
    theirs, _ = published('deit')
    file = {'model': theirs, 'args': Bomb(tmp_path / 'boom')}
    torch.save(file, tmp_path / 'deit.pth')
    with pytest.raises(CheckpointError, match='could run foreign code'):
        read(tmp_path / 'deit.pth')
    assert not (tmp_path / 'boom').exists()


@pytest.mark.parametrize('is_tool', [False, True])
def test_programs_read_what_tools_do(is_tool, tmp_path, monkeypatch):
    """What a run has written, and nothing that runs anything."""
    if is_tool:
        monkeypatch.setattr(torch, 'load', torch.load)
        replacements.install()
    hub = MessageHub.get_instance('test_programs_read_what_tools_do')
    hub.update_scalar('train/loss', np.float32(2.0))
    weights = {'a': torch.ones(2)}
    file = dict(state_dict=weights, message_hub=hub.state_dict(), meta={})
    torch.save(file, tmp_path / 'run.pth')
    assert same(read(tmp_path / 'run.pth'), weights)
    torch.save(dict(file, meta=Bomb(tmp_path / 'boom')), tmp_path / 'evil.pth')
    with pytest.raises(UserError, match='evil.pth'):
        read(tmp_path / 'evil.pth')
    assert not (tmp_path / 'boom').exists()


def damaged(path, what):
    torch.save(published('deit')[0], path)
    content = path.read_bytes()
    if what == 'truncated':
        path.write_bytes(content[: len(content) // 2])
    elif what == 'empty':
        path.write_bytes(b'')
    elif what == 'text':
        path.write_text('<html>404: no such file</html>')
    elif what == 'list':
        torch.save([torch.ones(1)], path)
    elif what == 'numbers':
        torch.save({'epoch': 3}, path)
    elif what == 'missing':
        path.unlink()
    elif what == 'folder':
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    'what',
    ['truncated', 'empty', 'text', 'list', 'numbers', 'missing', 'folder'],
)
def test_damaged_files(tmp_path, what):
    damaged(tmp_path / 'deit.pth', what)
    with pytest.raises(CheckpointError, match=r'deit\.pth'):
        convert_file(tmp_path / 'deit.pth', tmp_path / 'out.pth', 'deit')
    assert [path.name for path in tmp_path.iterdir()] in (['deit.pth'], [])


def test_converted_file(tmp_path):
    theirs, ours = published('dinov2')
    torch.save(theirs, tmp_path / 'in.pth')
    convert_file(tmp_path / 'in.pth', tmp_path / 'new' / 'out.pth', 'dinov2')
    assert [p.name for p in (tmp_path / 'new').iterdir()] == ['out.pth']
    file = torch.load(tmp_path / 'new' / 'out.pth', weights_only=True)
    assert same({**file['state_dict'], **file['unused']}, ours)
    assert list(file['unused']) == ['unused.mask_token']


def test_unwritable(tmp_path):
    torch.save(published('deit')[0], tmp_path / 'in.pth')
    (tmp_path / 'file').touch()
    with pytest.raises(CheckpointError, match='cannot write'):
        convert_file(tmp_path / 'in.pth', tmp_path / 'file' / 'x', 'deit')


def test_pretrained_backbone(tmp_path):
    """What MMEngine makes of a converted file."""
    record = torch.load(GOLDEN / 'evit_fuse1.pt', weights_only=True)
    torch.save({'model': record['state_dict']}, tmp_path / 'in.pth')
    path = str(tmp_path / 'out.pth')
    ours = convert_file(tmp_path / 'in.pth', path, 'evit')
    init_cfg = {'type': 'Pretrained', 'checkpoint': path}
    model = EViT(**SMALL, init_cfg={**init_cfg, 'prefix': 'backbone.'})
    model.init_weights()
    for key, value in model.state_dict().items():
        assert torch.equal(value, ours[f'backbone.{key}'])


def test_tool(tmp_path):
    theirs, ours = published('deit')
    torch.save({'model': theirs}, tmp_path / 'in.pth')
    args = ('convert_checkpoint.py', 'in.pth', 'out.pth', '--from')
    out = run_tool(*args, 'deit', cwd=tmp_path)
    assert f'{len(ours)} tensors written to out.pth' in out
    file = torch.load(tmp_path / 'out.pth', weights_only=True)
    assert same(file['state_dict'], ours)
    out = run_tool(*args, 'dinov2', cwd=tmp_path, ok=False)
    assert 'error: this is no dinov2 checkpoint. Missing: blocks.0.ls1' in out
    assert 'Traceback' not in out
