"""No tool runs what is in a checkpoint, or uses what is none of its own."""

import pickle
import re
import struct
import zipfile

import cv2
import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer, MessageHub
from mmengine.registry import WEIGHT_INITIALIZERS
from mmengine.runner import CheckpointLoader

from clustr_mm.checkpoints import replacements, safe_loading
from clustr_mm.checkpoints.compatibility import CheckedPretrainedInit
from clustr_mm.checkpoints.safe_loading import UnsafeCheckpointError, load
from clustr_mm.errors import UserError
from tests import small_training
from tests.runs import run_tool
from tests.torch_features import CAN_EXPORT


class Call:
    """Pickled as a call."""

    def __init__(self, function, *args):
        self.reduced = (function, args)

    def __reduce__(self):
        return self.reduced


def attack(mark):
    """What makes a file if it is run."""
    return Call(exec, f'open({str(mark)!r}, "w")')


@pytest.fixture
def _installed(monkeypatch):
    monkeypatch.setattr(torch, 'load', torch.load)
    replacements.install()


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'file.pth'


@pytest.mark.parametrize('zipped', [True, False])
@pytest.mark.usefixtures('_installed')
def test_programs_are_not_run(zipped, path, tmp_path):
    mark = tmp_path / 'mark'
    torch.save(
        dict(state_dict=dict(a=torch.ones(2)), meta=attack(mark)),
        path,
        _use_new_zipfile_serialization=zipped,
    )
    with pytest.raises(UnsafeCheckpointError, match='builtins.exec'):
        load(path)
    with pytest.raises(UnsafeCheckpointError, match='--trust-checkpoint'):
        CheckpointLoader.load_checkpoint(str(path), 'cpu')
    with pytest.raises(UnsafeCheckpointError):
        torch.load(path, weights_only=False)
    assert not mark.exists()
    load(path, trusted=True)
    assert mark.exists()


def test_what_is_replaced(path, monkeypatch):
    monkeypatch.setattr(torch, 'load', safe_loading._torch_load)
    assert not replacements.is_installed()
    replacements.install()
    assert replacements.is_installed()
    # So that a message or a tool that asks for its name finds it.
    assert torch.load.__name__ == 'load'
    torch.save(dict(a=torch.ones(2)), path)
    for weights_only in True, False:
        found = torch.load(path, 'cpu', weights_only=weights_only)
        assert torch.equal(found['a'], torch.ones(2))
    assert WEIGHT_INITIALIZERS.get('Pretrained') is CheckedPretrainedInit


@pytest.mark.parametrize(
    'detour',
    [
        # MMEngine's own list of what is safe has getattr.
        Call(getattr, HistoryBuffer, '__init__'),
        Call(getattr, torch.Tensor, '__init__'),
        Call(np.load, 'file.npy', None, True),
        Call(torch.load, 'file.pth'),
    ],
)
def test_detours_are_closed(detour, path):
    torch.save(dict(state_dict=detour), path)
    with pytest.raises(UnsafeCheckpointError):
        load(path)


def test_getattr_leads_nowhere(path):
    """A pickle by hand that MMEngine's own safe way opens.

    It would put eval in the place of open.
    """

    def text(value):
        value = value.encode()
        return pickle.BINUNICODE + struct.pack('<I', len(value)) + value

    def attribute(owner, name):
        call = pickle.TUPLE2 + pickle.REDUCE
        return get + owner + text(name) + call

    get = pickle.GLOBAL + b'__builtin__\ngetattr\n'
    module = attribute(get, '__self__')
    program = pickle.PROTO + b'\x02' + attribute(module, '__dict__')
    program += text('open') + attribute(module, 'eval') + pickle.SETITEM
    torch.save({}, path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, 'w') as archive:
        for name, data in files.items():
            if name.endswith('data.pkl'):
                data = program + pickle.STOP
            archive.writestr(name, data)
    was = open
    with pytest.raises(UnsafeCheckpointError, match="getattr of '__self__'"):
        load(path)
    assert open is was


@pytest.mark.parametrize('target', [HistoryBuffer, torch.Tensor, np.dtype])
def test_no_attribute_of_a_class_is_set(target, path):
    """A pickle by hand: BUILD on what GLOBAL gave."""
    name = f'{target.__module__}\n{target.__qualname__}\n'.encode()
    state = pickle.dumps((None, {'name': 1}), 2)[2:-1]
    program = pickle.PROTO + b'\x02' + pickle.GLOBAL + name + state
    path.write_bytes(program + pickle.BUILD + pickle.STOP)
    with pytest.raises(UnsafeCheckpointError, match='the state of'):
        load(path)


def test_scripts_are_not_loaded(path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(str(path))
    with pytest.raises(UnsafeCheckpointError, match='TorchScript'):
        load(path)


def test_what_a_run_writes_is_read(path):
    hub = MessageHub.get_instance('test_what_a_run_writes_is_read')
    hub.update_scalar('train/loss', 2.0)
    hub.update_scalar('train/loss', np.float32(4.0))
    hub.update_info('best_score', np.float64(0.5))
    meta = dict(
        palette=np.arange(6, dtype=np.uint8).reshape(2, 3),
        names=np.array(['a', 'b']),
        classes={'a', 'b'},
        config='raise SystemExit',  # MMEngine would run it
        random=np.random.get_state(),
    )
    parameter = torch.nn.Parameter(torch.ones(2).half())
    written = dict(
        meta=meta, message_hub=hub.state_dict(), state_dict=dict(p=parameter)
    )
    torch.save(written, path)
    read = load(path)
    assert 'config' not in read['meta']
    assert (read['meta']['palette'] == meta['palette']).all()
    assert (read['meta']['random'][1] == meta['random'][1]).all()
    assert read['message_hub']['runtime_info']['best_score'] == 0.5
    scalars = read['message_hub']['log_scalars']['train/loss']
    assert scalars.mean() == 3.0
    assert torch.equal(read['state_dict']['p'], parameter)


@pytest.mark.parametrize(
    'damage',
    [
        lambda data: b'',
        lambda data: b'<html>404: not found</html>',
        lambda data: b'\x89PNG\r\n\x1a\n' + data[8:],
        lambda data: pickle.dumps('a text'),
        *(
            lambda data, share=share: data[: int(len(data) * share)]
            for share in (0.001, 0.1, 0.5, 0.9, 0.999)
        ),
    ],
)
def test_damaged_files_are_named(damage, path):
    torch.save(dict(state_dict=dict(a=torch.ones(100))), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=re.escape(str(path))) as error:
        load(path)
    assert '\n' not in str(error.value)


# Several tools in one process, as most of their time is spent on importing.


def test_tools(tmp_path):
    """Hostile, foreign and damaged checkpoints in the tools."""
    options = small_training.write(tmp_path)
    mark, evil = tmp_path / 'mark', tmp_path / 'evil.pth'
    state_dict = {'backbone.cls_token': torch.zeros(1, 1, 24)}
    torch.save(dict(state_dict=state_dict, meta=attack(mark)), evil)
    foreign, empty = tmp_path / 'foreign.pth', tmp_path / 'empty.pth'
    torch.save(dict(state_dict={'conv1.weight': torch.ones(2)}), foreign)
    empty.touch()
    picture = tmp_path / 'picture.png'
    cv2.imwrite(str(picture), np.zeros((32, 32, 3), np.uint8))
    load_from = [*options, '--cfg-options']
    pretrained = 'model.backbone.init_cfg.type=Pretrained'
    hostile = [
        ('train.py', *options, '--resume', evil),
        ('train.py', *load_from, f'load_from={evil}'),
        (
            *('train.py', *load_from, pretrained),
            f'model.backbone.init_cfg.checkpoint={evil}',
        ),
        ('test.py', options[0], evil, *options[1:]),
        (
            'convert_checkpoint.py',
            evil,
            tmp_path / 'out.pth',
            '--from',
            'deit',
        ),
        (
            *('visualize_tokens.py', picture, options[0], evil),
            *('--out', tmp_path / 'out'),
        ),
    ]
    if CAN_EXPORT:
        out = tmp_path / 'out.onnx'
        hostile.append(('export_onnx.py', options[0], evil, out))
    unfit = {
        'cannot be read': ('test.py', options[0], empty, *options[1:]),
        'of another model': ('test.py', options[0], foreign, *options[1:]),
        'no state of a run': ('train.py', *options, '--resume', foreign),
        'has 0': ('train.py', *load_from, f'load_from={foreign}'),
    }
    for command in hostile:
        text = run_tool(*command, cwd=tmp_path, ok=False)
        assert str(evil) in text
        assert 'Traceback' not in text
    assert not mark.exists()
    for message, command in unfit.items():
        text = run_tool(*command, cwd=tmp_path, ok=False)
        error = text[text.index('error:') :].strip()
        assert message in error
        assert len(error.splitlines()) == 1
        assert 'Traceback' not in text
    trusting = ('test.py', options[0], evil, '--trust-checkpoint')
    run_tool(*trusting, *options[1:], cwd=tmp_path, ok=False)
    assert mark.exists()
