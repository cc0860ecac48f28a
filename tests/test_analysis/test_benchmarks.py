import json
import os
import re
import signal
import subprocess
import sys
import time

import matplotlib.image
import pytest
import torch
from mmengine.config import Config

import clustr_mm.backbones  # noqa: F401
from clustr_mm.analysis import benchmarks, growth
from clustr_mm.analysis.measure import Candidate, Setting, measure
from clustr_mm.errors import UserError
from clustr_mm.tokens import processor
from tests.runs import TOOLS, run_tool
from tests.tiny_models import TRAINED_ARCH, clustr_arch

QUICK = Setting(rounds=2, budget=20.0)


def test_measure():
    held = []

    def sleep(seconds, megabytes):
        held.append(torch.empty(megabytes * 2**18))
        time.sleep(seconds)
        held.clear()

    result = measure(
        'sleepers',
        {
            'slow': Candidate(lambda: sleep(0.12, 40), macs=30),
            'fast': Candidate(lambda: sleep(0.04, 10), macs=20),
            'middle': Candidate(lambda: sleep(0.06, 10), 25, rival='fast'),
        },
        Setting(rounds=5),
        batch=3,
    )
    slow, fast, middle = result.data
    assert fast['speedup'].median == pytest.approx(3, rel=0.3)
    assert fast['macs_ratio'] == 1.5
    assert fast['images_per_second'] == 3 / fast['seconds'].median
    assert slow['memory'] == pytest.approx(40 * 2**20, rel=0.05)
    assert fast['memory'] == pytest.approx(10 * 2**20, rel=0.05)
    assert middle['over_rival'].median == pytest.approx(2 / 3, rel=0.3)
    assert 'over_rival' not in fast
    text = result.as_text()
    assert 'sleepers; median (quartiles) of 5 rounds' in text
    assert '40.0' in text


def test_picture():
    """Its neighbours are alike, as in photographs and not in noise."""
    torch.manual_seed(0)
    picture = QUICK.picture(2, 3, 60, 90)
    assert picture.shape == (2, 3, 60, 90)
    assert picture.std().item() == pytest.approx(1)
    for a, b in (
        (picture[..., 1:], picture[..., :-1]),
        (
            picture[..., 1:, :],
            picture[..., :-1, :],
        ),
    ):
        assert (a * b).mean() > 0.5


def test_runs_as_said():
    seen = []

    def look():
        seen.append((torch.is_grad_enabled(), torch.is_autocast_cpu_enabled()))

    candidates = dict(look=Candidate(look))
    measure('', candidates, Setting(rounds=1))
    assert set(seen) == {(False, False)}
    seen.clear()
    measure('', candidates, Setting(rounds=1, dtype='bfloat16'))
    assert set(seen) == {(False, True)}


def test_precision_that_an_older_torch_lacks(monkeypatch):
    def autocast(device, dtype, enabled):
        raise RuntimeError('only bfloat16')

    monkeypatch.setattr(torch, 'autocast', autocast)
    message = 'not compute in float16 on cpu: only bfloat16'
    with pytest.raises(UserError, match=message):
        Setting(dtype='float16')


def test_clustering():
    results = list(
        benchmarks.clustering(
            QUICK,
            shapes=[((2, 400, 16), (100, 25))],
            large_grid=(70, 60),
            medoids=((2, 8, 5, 6), 20),
        )
    )
    names = [[found['name'] for found in r.data] for r in results]
    assert names == [
        ['textbook', 'ours'],
        ['exact', 'window 56'],
        ['loop over clusters', 'ours'],
    ]
    textbook = results[0].data[0]
    # Its product of all pairs, and of three N x N matrices at least two of
    # numbers and one of truths.
    assert textbook['macs'] == 2 * 400 * 400 * 16
    assert textbook['memory'] > 2 * 400 * 400 * (4 + 4 + 1)
    assert any('Equal labels: 100' in note for note in results[0].notes)


def test_reference_that_is_wrong_is_noticed(monkeypatch):
    def wrong(x, numbers):
        return [torch.zeros(x.shape[:2], dtype=torch.long) for _ in numbers]

    monkeypatch.setattr(benchmarks, 'textbook_density_peaks', wrong)
    shapes = [((1, 400, 16), (100,))]
    with pytest.raises(AssertionError, match='do not agree'):
        next(benchmarks.clustering(QUICK, shapes=shapes))


@pytest.fixture
def _tiny(monkeypatch):
    plain = {
        name: dict(settings, arch=TRAINED_ARCH)
        for name, settings in benchmarks.PLAIN.items()
    }
    plain['HVT-S-1']['num_stages'] = 1
    plain['Token Pooling, level 3']['keep'] = [14, 9, 5, 0]
    monkeypatch.setattr(benchmarks, 'PLAIN', plain)
    for name, kind in dict(DEIT='ThinViT', TOME='ToMe').items():
        small = dict(type=kind, arch=TRAINED_ARCH)
        monkeypatch.setattr(benchmarks, name, small)
    clustr = dict(
        type='ClusTR',
        arch=clustr_arch((1, 1), 32),
        reduction=(16, 4),
        out_indices=(0, 1),
    )
    monkeypatch.setattr(benchmarks, 'PYRAMIDS', {'ClusTR': clustr})
    for name in 'SWIN', 'PVT':
        sra = dict(clustr, attention='sra')
        monkeypatch.setattr(benchmarks, name, sra)
    monkeypatch.setattr(growth, 'MODELS', {'ClusTR': clustr, 'baseline': sra})


@pytest.mark.usefixtures('_tiny')
def test_plain_vits():
    result = benchmarks.plain_vits(QUICK, batch=2, size=64)
    found = {row['name']: row for row in result.data}
    assert len(found) == 1 + 2 * 5
    assert found['EViT-S/0.7']['macs_ratio'] > 1.1
    assert found['EViT-S/0.7']['rival'] == 'EViT-S/0.7, straightforward'
    dense = found['DeiT-S, ours']
    assert dense['macs_ratio'] == 1
    assert dense['macs'] == found['DeiT-S, ours, straightforward']['macs']


@pytest.mark.usefixtures('_tiny')
def test_feature_maps():
    result = benchmarks.feature_maps(QUICK, batch=2, size=64)
    rivals = [row.get('rival') for row in result.data]
    assert rivals[1] == 'EViT-S/0.7, cls_token'
    assert rivals[::2] == [None] * 3


@pytest.mark.usefixtures('_tiny')
def test_training():
    (result,) = benchmarks.training(QUICK, batches=[2], size=64)
    found = {row['name']: row for row in result.data}
    assert next(iter(found)) == 'DeiT-S, ours'
    assert {'ToMe', 'ClusTR', 'Swin-T, mmseg', 'PVTv2-b2, mmdet'} < set(found)
    assert found['EViT-S/0.7']['macs_ratio'] > 1.1
    # What the backward pass needs is kept.
    predicted = benchmarks.plain_vits(QUICK, batch=2, size=64).data
    memory = {row['name']: row['memory'] for row in predicted}
    assert found['DeiT-S, ours']['memory'] > 2 * memory['DeiT-S, ours']


def test_training_step_trains():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3)).eval()
    step = benchmarks.training_step(model, torch.ones(1, 3))
    before = model[0].weight.clone()
    step()
    assert model.training
    assert not torch.equal(model[0].weight, before)


@pytest.mark.usefixtures('_tiny')
def test_precision():
    setting = Setting(rounds=1, budget=20.0, dtype='bfloat16')
    (result,) = benchmarks.precision(setting, batches=[2], size=64)
    full, low = result.data[::2], result.data[1::2]
    assert full[0]['name'] == 'DeiT-S, ours'
    assert low[0]['name'] == 'DeiT-S, ours, bfloat16'
    for one, other in zip(full, low, strict=True):
        assert other['rival'] == one['name']
    # Of a number, bfloat16 keeps 8 bits.
    note = next(note for note in result.notes if note.startswith('DeiT'))
    error = float(note.rpartition(' ')[2].rstrip('%'))
    assert 0.05 < error < 5


@pytest.mark.usefixtures('_tiny')
def test_pyramids():
    result = benchmarks.pyramids(QUICK, 1, (64, 96), benchmarks.PYRAMIDS)
    found = {row['name']: row for row in result.data}
    assert 0 < found['ClusTR']['clustering_share'].median < 1
    assert 'clustering_share' not in found['Swin-T, mmseg']
    assert 'of the time is clustering' in result.notes[0]


@pytest.mark.slow
@pytest.mark.usefixtures('_tiny')
def test_compiled_runs_beside_eager():
    setting = Setting(rounds=1, compiled=True)
    result = benchmarks.pyramids(setting, 1, (64, 64), {})
    names = [row['name'] for row in result.data]
    assert names[:2] == ['Swin-T, mmseg', 'Swin-T, mmseg, compiled']
    assert result.data[1]['rival'] == 'Swin-T, mmseg'


@pytest.mark.usefixtures('_tiny')
def test_growth(tmp_path):
    results = list(
        growth.growth(QUICK, sizes=(64, 96), numbers=(256, 1024, 20736))
    )
    backbones, clustering = results
    assert [row['amount'] for row in backbones.data] == [64**2] * 2 + [
        96**2
    ] * 2
    assert all(row['memory'] > 0 for row in backbones.data)
    largest = [row for row in clustering.data if row['value'] == 20736]
    assert [row['name'] for row in largest] == ['exact', 'window 56']
    path = tmp_path / 'growth.png'
    growth.plot_growth(results, path)
    picture = matplotlib.image.imread(path)
    assert picture.shape[0] > 500
    assert picture.std() > 0.05


@pytest.mark.usefixtures('_tiny')
def test_growth_leaves_out_the_slow():
    results = growth.growth(QUICK, limit=0.0, sizes=(64, 96), numbers=(64,))
    assert {row['value'] for row in next(results).data} == {64}


def test_grid():
    assert growth._grid_of(3136) == (56, 56)
    assert growth._grid_of(1568) == (32, 49)
    assert growth._grid_of(7) == (1, 7)


@pytest.fixture
def config_file(tmp_path):
    backbone = dict(
        type='ClusTR',
        arch=clustr_arch((1, 1), 32),
        reduction=(4, 1),
        out_indices=(1,),
    )
    model = dict(
        type='mmpretrain.ImageClassifier',
        backbone=backbone,
        neck=dict(type='mmpretrain.GlobalAveragePooling'),
        head=dict(
            type='mmpretrain.LinearClsHead', num_classes=3, in_channels=64
        ),
    )
    settings = dict(
        default_scope='mmpretrain',
        custom_imports=dict(imports=['clustr_mm']),
        model=model,
    )
    path = tmp_path / 'config.py'
    Config(settings).dump(path)
    return path


@pytest.fixture
def start():
    """Start the tool; none runs on after the test."""
    started = []

    def start(*args):
        process = subprocess.Popen(
            [sys.executable, TOOLS / 'benchmark.py', *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, 'OMP_NUM_THREADS': '1'},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_tool(config_file):
    pytest.importorskip('mmpretrain')
    out = run_tool(
        *('benchmark.py', 'config', config_file, '--json', '--rounds', 3),
        *('--shape', 64, 48, '--batch', 2, 1, '--threads', 1),
        *('--dtype', 'float32', 'bfloat16'),
        cwd=config_file.parent,
    )
    printed = re.search(r'^{.*^}', out, re.MULTILINE | re.DOTALL)[0]
    results = json.loads(printed)['results']
    titles = [result['title'] for result in results]
    assert [title.split(';')[0] for title in titles] == [
        '2 x 64 x 48, float32',
        '1 x 64 x 48, float32',
        '2 x 64 x 48, bfloat16',
        '1 x 64 x 48, bfloat16',
    ]
    assert all(
        title.endswith(f' on {processor.name()}, 1 threads')
        for title in titles
    )
    row = results[0]['rows'][0]
    assert row['name'] == 'eager'
    assert row['rounds'] == 3
    assert row['seconds']['low'] <= row['seconds']['median']
    # An image's; how much clustering searches depends on the image.
    other = results[1]['rows'][0]['macs']
    assert row['macs'] == pytest.approx(other, rel=0.05)


def test_interrupted_tool_keeps_what_is_done(config_file, start):
    pytest.importorskip('mmpretrain')
    process = start(
        'config', config_file, '--shape', '64', '--batch', '1', '2',
        '--rounds', '10000000', '--budget', '10000',
    )  # fmt: skip
    began = []
    while not any('1 x 64 x 64' in line for line in began):
        began.append(process.stderr.readline())
        assert began[-1], began
    time.sleep(10)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert '1 x 64 x 64, float32; median' in out
    assert '2 x 64 x 64' not in out
    assert 'results so far' in err
    assert 'Traceback' not in err


def test_tool_says_what_is_wrong(tmp_path):
    tool = ('benchmark.py', 'config', tmp_path / 'none.py')
    out = run_tool(*tool, cwd=tmp_path, ok=False)
    assert 'there is no config file' in out
    if not torch.cuda.is_available():
        tool = ('benchmark.py', 'clustering', '--device', 'cuda')
        out = run_tool(*tool, cwd=tmp_path, ok=False)
        assert 'finds no GPU' in out
