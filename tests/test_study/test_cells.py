"""A cell of each task, by the tools that users have."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clustr_mm import configs
from clustr_mm.analysis.models import build_model
from clustr_mm.study import cells
from clustr_mm.study.cells import OutOfTime, Study
from clustr_mm.study.claims import ARMS, Arm
from clustr_mm.study.prepare import prepare
from tests.runs import ROOT, fork_server
from tests.test_study.test_prepare import make_downloads

LAUNCH = Study._launch
# An epoch of one step is warm-up all through.
FEW = {
    **dict.fromkeys(cells.QUICK, 1),
    'param_scheduler.0.end': 1,
    'train_dataloader.dataset.indices': 64,
    'val_dataloader.dataset.indices': 4,
    'test_dataloader.dataset.indices': 4,
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Few pictures, and results that stay from test to test."""
    folder = tmp_path_factory.mktemp('study')
    downloads = folder / 'downloads'
    downloads.mkdir()
    make_downloads(downloads, 70, 10)
    for name in ('cifar10', 'garments_128', 'garments_256', 'crowns'):
        prepare(name, downloads, folder / 'data' / name, 8, 4)
    return folder


@pytest.fixture
def study(folder, monkeypatch):
    def forked(self, command, log):
        _, tool, *arguments = command
        status, text = fork_server().run(Path(tool).name, arguments, ROOT)
        log.write_text(text)
        return status

    if not torch.cuda.is_available():  # which no fork can use
        monkeypatch.setattr(Study, '_launch', forked)
    monkeypatch.setattr(cells, 'QUICK', FEW)
    return Study(
        tools=ROOT / 'tools',
        configs=ROOT / 'configs',
        data=folder / 'data',
        work=folder / 'work',
        results=folder / 'results',
        quick=True,
    )


def checked(study, arm):
    result = json.loads(study.result(arm, 1).read_text())
    assert 0 <= result['value'] <= 100
    assert result['macs'] > 1e6
    assert result['config'].endswith(ARMS[arm].config)
    assert result['seed'] == 1
    return result


def test_a_cell(study):
    """It trains on from the weights of another."""
    arm = ARMS['vit_sharp']
    cfg = configs.read(ROOT / 'configs/study' / arm.config, dict(arm.options))
    model = build_model(cfg)
    weights = model.state_dict()
    weights['backbone.cls_token'] = torch.full((1, 1, 128), 7.0)
    start = study.work / 'vit_sharp/1'
    start.mkdir(parents=True)
    torch.save(dict(state_dict=weights, meta={}), start / 'epoch_1.pth')
    (start / 'last_checkpoint').write_text(str(start / 'epoch_1.pth'))
    there = study.result('vit_sharp', 1)
    there.parent.mkdir(parents=True)
    there.write_text('{}')
    study.cell('kmeans_tuned', 1)
    result = checked(study, 'kmeans_tuned')
    assert len(result['history']) == 1
    assert result['macs'] < 0.7 * 111e6
    path = study.work / 'kmeans_tuned/1/epoch_1.pth'
    tuned = torch.load(path, weights_only=False)['state_dict']
    assert (tuned['backbone.cls_token'] - 7).abs().max() < 0.1
    there.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    'arm',
    [
        'kmeans_half',
        'dynamicvit_2',
        'evit_scheduled',
        'student_07_class_frozen',
        'growth_0_fpn',
        'growth_0_boxes',
        'dynamicvit_trained_fpn_2',
        'evit_fused_masks_2',
        'dynamicvit_ratio_masks_2',
    ],
)
def test_a_cell_of_each_task(arm, study):
    study.cell(arm, 1)
    checked(study, arm)
    for start in ARMS[arm].starts.values():
        assert study.result(start, 1).is_file()


def test_weights_that_stayed_elsewhere_are_trained_again(study):
    """With a result that came from another machine, which stays."""
    there = study.result('vit_sharp', 2)
    there.parent.mkdir(parents=True, exist_ok=True)
    there.write_text('{"value": 50}')
    study.cell('kmeans_tuned', 2)
    assert (study.work / 'vit_sharp/2/epoch_1.pth').is_file()
    assert study.result('kmeans_tuned', 2).is_file()
    assert there.read_text() == '{"value": 50}'


def test_runs_share_the_work(study, monkeypatch):
    """What another is at is left for the end, and not done twice."""
    monkeypatch.setattr(
        cells, 'CLAIMS', {'one': Claimed(['first', 'second', 'third'])}
    )
    done = []

    def run(self, arm, seed, wait):
        done.append(arm)
        self.result(arm, seed).parent.mkdir(parents=True, exist_ok=True)
        self.result(arm, seed).touch()
        if arm == 'third':
            other.__exit__(None, None, None)

    monkeypatch.setattr(Study, '_run', run)
    other = study._alone('first', 0, wait=False)
    other.__enter__()
    study.run(['one'])
    assert done == ['second', 'third', 'first']


def test_what_is_there_is_not_run_again(study, monkeypatch):
    path = study.result('vit', 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{}')
    monkeypatch.setattr(
        cells, 'CLAIMS', {'one': Claimed(['vit']), 'two': Claimed(['vit'])}
    )
    study.run(['one', 'two'])
    assert path.read_text() == '{}'


class Claimed:
    seeds = (0,)

    def __init__(self, arms):
        self.arms = arms


@pytest.fixture
def endless(study, tmp_path, monkeypatch):
    """A study whose trainings take long, and leave a file on their way out."""
    monkeypatch.setattr(Study, '_launch', LAUNCH)
    (tmp_path / 'train.py').write_text(
        'import pathlib, signal, sys, time\n'
        'folder = sys.argv[sys.argv.index("--work-dir") + 1]\n'
        'signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())\n'
        'try:\n'
        '    pathlib.Path(folder, "begun").touch()\n'
        '    time.sleep(100)\n'
        'finally:\n'
        '    pathlib.Path(folder, "farewell").touch()\n'
    )
    monkeypatch.setitem(ARMS, 'short', Arm('vit_cifar10.py'))
    return Study(**{**vars(study), 'tools': Path(tmp_path)})


def test_out_of_time(endless):
    """What was begun is ended, in peace, and leaves no result."""
    over = replace(endless, deadline=time.monotonic() + 1)
    with pytest.raises(OutOfTime):
        over.cell('short', 0)
    # A busy machine may not have begun by then.
    work = endless.work / 'short/0'
    assert (work / 'farewell').exists() == (work / 'begun').exists()
    assert not endless.result('short', 0).exists()


def test_asked_to_end(endless):
    """By a scheduler: it leaves no training behind."""
    work = endless.work / 'short/1'

    def ask():
        while not (work / 'begun').exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    with pytest.raises(SystemExit) as error:
        endless.cell('short', 1)
    assert error.value.code == 128 + signal.SIGTERM
    assert (work / 'farewell').exists()
    assert not endless.result('short', 1).exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
