"""Published weights by name, from a server on this machine."""

import hashlib
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import CheckpointLoader

from clustr_mm.backbones.evit import EViT
from clustr_mm.checkpoints import download, published, unpublished
from clustr_mm.checkpoints.compatibility import shapes
from clustr_mm.checkpoints.layouts import LAYOUTS, convert, revert
from clustr_mm.checkpoints.load import load_weights
from clustr_mm.configs import config_folder
from clustr_mm.errors import UserError
from clustr_mm.runs import launch
from clustr_mm.runs.initial_weights import initial_weights_are_there
from clustr_mm.shapes import make_shapes
from clustr_mm.training.sparsification import SparseClassifier
from clustr_mm.training.teacher import Teacher
from tests.recorded import GOLDEN
from tests.runs import ROOT, run_tool
from tests.tiny_models import SMALL

NAME = 'published:evit-tiny'


class Server(http.server.ThreadingHTTPServer):
    """Answers each path in a way of its own, and counts."""

    def __init__(self, content):
        super().__init__(('127.0.0.1', 0), Handler)
        self.content = content
        self.asked = []
        # Until then, a stalled answer waits.
        self.ended = threading.Event()

    @property
    def url(self):
        return f'http://127.0.0.1:{self.server_port}'


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        name = self.path.split('/')[1]
        self.server.asked.append(name)
        getattr(self, f'_{name}')(self.server.content)

    def _head(self, length, kind='application/octet-stream', status=200):
        self.send_response(status)
        self.send_header('Content-Type', kind)
        if length is not None:
            self.send_header('Content-Length', str(length))
        self.end_headers()

    def _good(self, content):
        self._head(len(content))
        self.wfile.write(content)

    def _slow(self, content):
        self._head(len(content))
        step = len(content) // 8 + 1
        for start in range(0, len(content), step):
            self.wfile.write(content[start : start + step])
            time.sleep(0.1)

    def _cut(self, content):
        self._head(len(content))
        self.wfile.write(content[: len(content) // 2])

    def _shortened(self, content):
        """Nobody says how long it should be."""
        self._head(None)
        self.wfile.write(content[: len(content) // 2])

    def _stalled(self, content):
        self._head(len(content))
        self.wfile.write(content[: len(content) // 2])
        self.wfile.flush()
        self.server.ended.wait(60)

    def _page(self, content):
        page = (
            b'\n<!DOCTYPE html><html><head><title>Drive - Virus scan '
            b'warning</title></head><body>Download anyway?</body></html>'
        )
        self._head(len(page), 'text/html; charset=utf-8')
        self.wfile.write(page)

    def _missing(self, content):
        self.send_error(404)

    def _other(self, content):
        """A checkpoint, but of another project."""
        self._good((GOLDEN / 'hvt_m1.pt').read_bytes())


@pytest.fixture(scope='module')
def small():
    """The golden EViT, as its project would publish it."""
    record = torch.load(GOLDEN / 'evit_fuse1.pt', weights_only=True)
    return record['state_dict']


@pytest.fixture(scope='module')
def content(small, tmp_path_factory):
    path = tmp_path_factory.mktemp('published') / 'x.pth'
    # With the arguments of its training, as DeiT's script saves them.
    torch.save({'model': small, 'args': Namespace(lr=1e-3)}, path)
    return path.read_bytes()


@pytest.fixture
def server(content):
    server = Server(content)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.ended.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A cache of its own, with the network allowed."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    monkeypatch.delenv(published.PLACE)
    return tmp_path / 'torch/hub/checkpoints'


@pytest.fixture
def offer(monkeypatch):
    """Publish the small EViT at these addresses."""

    def put(*urls, licence='Apache-2.0', layout='evit'):
        weights = published.Weights(
            name='evit-tiny',
            project='EViT',
            code='https://evit.example',
            licence=licence,
            layout=layout,
            urls=urls,
        )
        table = {'evit-tiny': weights}
        monkeypatch.setattr(published, 'table', lambda: table)
        return weights

    return put


def files(folder):
    """What there is, lock files aside."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob('*')
        if path.is_file() and path.suffix != '.lock'
    )


def test_downloaded_converted_and_kept(server, hub, offer, small, capfd):
    offer(f'{server.url}/good/evit-tiny.pth')
    file = CheckpointLoader.load_checkpoint(NAME, 'cpu')
    ours = convert(small, 'evit')
    assert file['state_dict'].keys() == ours.keys()
    assert all(torch.equal(file['state_dict'][k], ours[k]) for k in ours)
    kept = files(hub)
    assert len(kept) == 2
    assert kept[1] == 'evit-tiny.pth'
    assert kept[0].startswith('clustr_mm/evit-tiny-')
    said = capfd.readouterr().out
    assert said.count('under the licence Apache-2.0') == 1
    # Neither downloaded nor converted nor licensed again.
    before = os.stat(hub / kept[0])
    CheckpointLoader.load_checkpoint(NAME, 'cpu')
    assert server.asked == ['good']
    assert os.stat(hub / kept[0]).st_mtime_ns == before.st_mtime_ns
    assert 'licence' not in capfd.readouterr().out


def test_what_is_not_for_commerce_says_so(server, hub, offer, capfd):
    offer(f'{server.url}/good/x.pth', licence='CC-BY-NC-4.0')
    published.fetch(NAME)
    said = capfd.readouterr().out
    assert 'CC-BY-NC-4.0, which does not allow commercial use' in said


def test_a_slow_server_is_waited_for(server, hub, offer, monkeypatch, capfd):
    monkeypatch.setattr(download, 'SILENCE', 0.5)
    offer(f'{server.url}/slow/x.pth')
    assert published.fetch(NAME).is_file()
    # Progress, by tqdm.
    assert '%|' in capfd.readouterr().err


@pytest.mark.parametrize(
    ('path', 'reason'),
    [
        ('cut/x.pth', 'it was cut off after'),
        ('shortened/x.pth', 'what came is no checkpoint, or only a part'),
        ('stalled/x.pth', 'timed out'),
        ('page/x.pth', r'a web page .* \(Drive - Virus scan warning\)'),
        ('missing/x.pth', 'HTTP Error 404'),
        ('other/x.pth', 'this is no evit checkpoint.* looks like hvt'),
        ('good/x-0123abcd.pth', 'SHA-256 begins with .*, not with 0123abcd'),
    ],
)
def test_what_went_wrong(server, hub, offer, monkeypatch, path, reason):
    monkeypatch.setattr(download, 'SILENCE', 0.5)
    url = f'{server.url}/{path}'
    weights = offer(url)
    with pytest.raises(UserError, match=reason) as error:
        published.fetch(NAME)
    message = str(error.value)
    # The address, and where to put it by hand.
    assert url in message
    assert str(hub / weights.file) in message
    assert 'CLUSTR_MM_WEIGHTS=DIR' in message
    assert '.part' not in message
    assert files(hub) == []


def test_nobody_answers(hub, offer, server):
    offer('http://127.0.0.1:9/x.pth')
    with pytest.raises(UserError, match='Connection refused'):
        published.fetch(NAME)


def test_the_next_address_is_tried(server, hub, offer):
    offer(f'{server.url}/missing/?dl=1', f'{server.url}/good/?dl=1')
    published.fetch(NAME)
    assert server.asked == ['missing', 'good']
    # An address without a name in it.
    assert 'evit-tiny.pth' in files(hub)


def test_the_hash_of_the_name(server, hub, offer, content):
    digest = hashlib.sha256(content).hexdigest()[:8]
    offer(f'{server.url}/good/x-{digest}.pth')
    published.fetch(NAME)


def test_old_files(server, hub, offer, small, tmp_path):
    """As torch wrote them before 1.6."""
    path = tmp_path / 'old.pth'
    torch.save(small, path, _use_new_zipfile_serialization=False)
    server.content = path.read_bytes()
    offer(f'{server.url}/good/x.pth.tar')
    published.fetch(NAME)


def test_a_program_is_refused(server, hub, offer, small, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / 'boom'),)

    torch.save({'model': small, 'args': Bomb()}, tmp_path / 'x.pth')
    server.content = (tmp_path / 'x.pth').read_bytes()
    offer(f'{server.url}/good/x.pth')
    with pytest.raises(UserError, match='what came .* could run foreign code'):
        published.fetch(NAME)
    assert not (tmp_path / 'boom').exists()
    assert files(hub) == []


def test_a_folder_in_place_of_the_network(
    server, hub, offer, content, monkeypatch, tmp_path
):
    folder = tmp_path / 'weights'
    folder.mkdir()
    monkeypatch.setenv(published.PLACE, str(folder))
    url = f'{server.url}/good/x-12345678.pth'
    offer(url)
    with pytest.raises(UserError, match='does not exist') as error:
        published.fetch(NAME)
    assert url in str(error.value)
    assert str(folder / 'x-12345678.pth') in str(error.value)
    # Also what was put there by hand is checked.
    (folder / 'x-12345678.pth').write_bytes(content)
    with pytest.raises(UserError, match='x-12345678.pth is not published:'):
        published.fetch(NAME)
    offer(f'{server.url}/good/x.pth')
    (folder / 'x.pth').write_bytes(content)
    folder.chmod(0o500)
    assert published.fetch(NAME).is_relative_to(hub / 'clustr_mm')
    assert server.asked == []
    folder.chmod(0o700)


def test_another_file_under_the_name_is_converted_anew(
    server, hub, offer, small
):
    offer(f'{server.url}/good/x.pth')
    first = published.fetch(NAME)
    changed = {key: value + 1 for key, value in small.items()}
    torch.save(changed, hub / 'x.pth')
    assert published.fetch(NAME) != first
    state_dict = published.load(NAME)['state_dict']
    assert torch.equal(state_dict['backbone.cls_token'], changed['cls_token'])


def test_a_cache_that_cannot_be_written(hub, offer, tmp_path):
    (tmp_path / 'torch').touch()
    offer('http://127.0.0.1:9/x.pth')
    with pytest.raises(UserError, match='name another folder by TORCH_HOME'):
        published.fetch(NAME)


def test_a_cache_that_can_only_be_read(server, hub, offer, monkeypatch):
    offer(f'{server.url}/good/x.pth')
    first = published.fetch(NAME)
    monkeypatch.setattr(published, 'FileLock', None)
    assert published.fetch(NAME) == first


PROCESS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from clustr_mm.checkpoints import published
weights = published.Weights(
    'evit-tiny', 'EViT', 'https://evit.example', 'MIT', 'evit', (sys.argv[1],)
)
published.table = lambda: {{'evit-tiny': weights}}
"""
FETCHES = PROCESS + "print(published.fetch('evit-tiny'))"


def run_script(url, script=FETCHES, *args):
    return subprocess.Popen(
        [sys.executable, '-c', script, url, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_processes_download_once(server, hub, tmp_path):
    both = [run_script(f'{server.url}/slow/x.pth') for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert server.asked == ['slow']
    first, second = (text.split()[-1] for text in outputs)
    assert first == second
    assert Path(first).is_file()
    assert ''.join(outputs).count('under the licence') == 1


@pytest.mark.parametrize('kind', [signal.SIGINT, signal.SIGKILL])
def test_interrupted(server, hub, kind):
    """Nothing under its name, and the next one is not held up."""
    process = run_script(f'{server.url}/stalled/x.pth')
    part = hub / '.x.pth.part'
    end = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size):
        assert time.monotonic() < end
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.send_signal(kind)
    process.communicate(timeout=60)
    # What is killed cannot clear up.
    assert files(hub) == ([] if kind == signal.SIGINT else ['.x.pth.part'])
    process = run_script(f'{server.url}/good/x.pth')
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 0, out
    assert 'x.pth' in files(hub)
    assert '.x.pth.part' not in files(hub)


def test_where_a_backbone_starts(server, hub, offer, small):
    offer(f'{server.url}/good/x.pth')
    init_cfg = dict(type='Pretrained', checkpoint=NAME, prefix='backbone.')
    model = EViT(**SMALL, init_cfg=init_cfg)
    model.init_weights()
    assert torch.equal(model.cls_token, small['cls_token'])


def test_teachers(server, hub, offer, small):
    """That of a distillation, and that of DynamicViT, which is itself."""
    init_default_scope('mmpretrain')
    offer(f'{server.url}/good/x.pth')
    init_cfg = dict(type='Pretrained', checkpoint=NAME, prefix='backbone.')
    teacher = Teacher(dict(type='EViT', **SMALL, init_cfg=init_cfg))
    teacher.init_weights()
    head = small['head.weight']
    sparse = SparseClassifier(
        dict(type='DynamicViT', **SMALL),
        dict(
            type='LinearClsHead',
            num_classes=len(head),
            in_channels=head.shape[1],
        ),
        pretrained=NAME,
    )
    sparse.init_weights()
    assert torch.equal(sparse.teacher.network.head.fc.weight, head)
    for backbone in (
        teacher.network,
        sparse.backbone,
        sparse.teacher.network.backbone,
    ):
        assert torch.equal(backbone.cls_token, small['cls_token'])


def test_load_weights(server, hub, offer, small):
    offer(f'{server.url}/good/x.pth')
    model = torch.nn.Module()
    model.backbone = EViT(**SMALL)
    load_weights(model, NAME)
    assert torch.equal(model.backbone.cls_token, small['cls_token'])


def test_names():
    assert published.find('published:deit-small').digest == 'cd65a155'
    with pytest.raises(UserError, match='take published:evit-s-k07 or'):
        published.find('published:evit-s-07')
    with pytest.raises(UserError, match='published:hvt-ti-1'):
        published.find('published:zzz')


def test_table():
    table = published.table()
    # They share a folder.
    files = {weights.file: weights.urls for weights in table.values()}
    for weights in table.values():
        assert files[weights.file] == weights.urls
    for weights in table.values():
        assert weights.layout in LAYOUTS
        assert all(url.startswith('https://') for url in weights.urls)
        assert weights.urls
        assert weights.licence
        if weights.config:
            assert (config_folder() / weights.config).is_file()


@pytest.mark.parametrize(
    'name', [n for n, weights in published.table().items() if weights.config]
)
def test_a_config_has_all_of_its_weights(name):
    """Its model in the published layout and back is the same."""
    pytest.importorskip('mmpretrain')
    weights = published.find(name)
    ours = published.load(name)['state_dict']
    theirs = revert(ours, weights.layout)
    assert convert(theirs, weights.layout).keys() == ours.keys()


CONFIGS = sorted(
    path
    for path in (ROOT / 'configs').rglob('*.py')
    if '_base_' not in path.parts
)


def start_of(cfg):
    """The published weights that a config starts from."""
    init_cfg = cfg.model.get('backbone', {}).get('init_cfg') or {}
    for start in (
        cfg.get('load_from'),
        cfg.model.get('pretrained'),
        init_cfg.get('checkpoint'),
    ):
        if start and published.is_name(start):
            return start
    return None


STARTS = {
    path: start
    for path in CONFIGS
    if (start := start_of(Config.fromfile(path, import_custom_modules=False)))
}


def test_what_starts_from_published_weights():
    names = {path.stem: start for path, start in STARTS.items()}
    tasks = ['upernet', 'fpn', 'mask_rcnn', 'retinanet', 'pose']
    for task in tasks:
        data = dict(upernet='ade20k', fpn='ade20k', pose='wholebody')
        data = data.get(task, 'coco')
        for backbone, weights in (
            ('evit_s_k07', 'deit-small'),
            ('token_pooling_s_k07', 'deit-small'),
            ('hvt_s1', 'hvt-s-1'),
            ('dynamicvit_s_k07', 'dynamicvit-s-k07'),
        ):
            name = f'{task}_{backbone}_{data}'
            assert names[name] == f'published:{weights}'
    assert names['upernet_tome_s_r8_ade20k'] == 'published:deit-small'
    assert names['dynamicvit_lvvit_m_k07_imagenet'] == 'published:lvvit-m'
    assert names['dynamicvit_b_k07_imagenet'] == 'published:deit-base'
    assert names['evit_s_k05_finetune_imagenet'] == 'published:deit-small'
    assert names['token_pooling_s_l7_imagenet'] == 'published:deit-small'
    assert 'evit_s_k07_imagenet' not in names


@pytest.mark.parametrize('path', STARTS, ids=lambda path: path.stem)
def test_what_a_config_starts_from_fits(path):
    """All but what only this backbone has, such as predictors, is there."""
    pytest.importorskip('mmpretrain')
    cfg = Config.fromfile(path)
    init_default_scope('mmengine')
    backbone = MODELS.build(cfg.model.backbone)
    file = published.load(STARTS[path])
    theirs = {
        name.removeprefix('backbone.'): shape
        for name, shape in shapes(file['state_dict']).items()
        if name.startswith('backbone.')
    }
    ours = shapes(backbone.state_dict())
    missing = {name for name, shape in ours.items() if name not in theirs}
    assert all(name.startswith('reducers.') for name in missing)
    assert {name: ours[name] for name in theirs} == theirs


def test_what_to_train_first():
    """It is there, and of the same backbone."""
    found = 0
    for path in CONFIGS:
        cfg = Config.fromfile(path, import_custom_modules=False)
        if 'train_first' not in cfg:
            continue
        found += 1
        first = Config.fromfile(ROOT / cfg.train_first)
        same = ('type', 'arch', 'reduction', 'attention')
        assert {k: cfg.model.backbone.get(k) for k in same} == {
            k: first.model.backbone.get(k) for k in same
        }
    assert found == 17


def test_random_starts_are_told(capfd):
    cfg = Config.fromfile(ROOT / 'configs/clustr/upernet_clustr_s_ade20k.py')
    unpublished.say_if_random(cfg)
    [said] = capfd.readouterr().out.splitlines()
    assert 'upernet_clustr_s_ade20k starts from random weights' in said
    assert 'train configs/clustr/clustr_s_imagenet.py first' in said
    # What is said to be passed works, and then nothing is said.
    options = re.findall(r'(model\.backbone\.\S+)=(\S+)', said)
    cfg.merge_from_dict(dict(options))
    init_cfg = cfg.model.backbone.init_cfg
    assert init_cfg.to_dict() == dict(
        type='Pretrained', prefix='backbone.', checkpoint='FILE'
    )
    unpublished.say_if_random(cfg)
    other = Config.fromfile(ROOT / 'configs/clustr/clustr_s_imagenet.py')
    unpublished.say_if_random(other)
    assert capfd.readouterr().out == ''


def test_runs_take_names():
    cfg = Config(dict(model={}))
    launch.load_from(cfg, 'published:deit-small')
    assert cfg.load_from == 'published:deit-small'
    with pytest.raises(UserError, match='take published:deit-small'):
        launch.load_from(cfg, 'published:deit-smal')
    with pytest.raises(UserError, match='no state of a run.*load_from=publ'):
        launch.resume(cfg, 'published:deit-small')
    cfg.model = dict(backbone=dict(init_cfg=dict(checkpoint='published:x')))
    with pytest.raises(UserError, match='nothing is known to be published as'):
        initial_weights_are_there(cfg)


TINY = f"""
_base_ = '{ROOT}/configs/quickstart/evit_shapes.py'
model = dict(backbone={SMALL}, head=dict(in_channels=48))
test_dataloader = dict(num_workers=0, persistent_workers=False)
"""
TESTS = f"""{PROCESS}
import runpy
sys.path.insert(0, {str(ROOT / 'tools')!r})
del sys.argv[1]
runpy.run_path({str(ROOT / 'tools/test.py')!r}, run_name='__main__')
"""


def test_a_test_downloads(server, hub, tmp_path):
    """From the command line of tools/test.py."""
    pytest.importorskip('mmpretrain')
    data = make_shapes(
        'classification', tmp_path / 'data', 10, size=32, val=0.5
    )
    (tmp_path / 'tiny.py').write_text(TINY)
    process = run_script(
        f'{server.url}/good/x.pth',
        TESTS,
        *(tmp_path / 'tiny.py', NAME, '--data-root', data),
        *('--work-dir', tmp_path / 'work'),
    )
    out = process.communicate(timeout=300)[0]
    assert process.returncode == 0, out
    assert 'accuracy/top1' in out
    assert 'Loads checkpoint by published backend' in out
    assert 'under the licence MIT' in out


def test_convert_tool(tmp_path):
    out = run_tool(
        *('convert_checkpoint.py', 'published:deit-tiny', 'deit_ti.pth'),
        cwd=tmp_path,
    )
    assert 'published:deit-tiny is random' in out
    assert '152 tensors written to deit_ti.pth' in out
    file = torch.load(tmp_path / 'deit_ti.pth', weights_only=True)
    assert file['state_dict']['backbone.cls_token'].shape == (1, 1, 192)
