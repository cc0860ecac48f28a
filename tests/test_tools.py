"""The tools from end to end, in the steps that a user takes."""

import json
import os
import re
import shutil
import sys

import cv2
import numpy as np
import pytest
import torch

from clustr_mm.shapes import make_shapes
from tests.runs import ROOT, TOOLS, free_port, run, run_tool

CONFIG = ROOT / 'configs/quickstart/upernet_clustr_shapes.py'


@pytest.fixture(scope='module')
def shapes(tmp_path_factory):
    out = tmp_path_factory.mktemp('shapes')
    return make_shapes('segmentation', out, num=20, size=64, val=0.2)


@pytest.fixture(scope='module')
def options(shapes):
    return [
        *('--data-root', shapes, '--work-dir', 'work'),
        '--cfg-options',
        'train_dataloader.batch_size=2',
        'train_dataloader.dataset.pipeline.3.crop_size=(64,64)',
        'model.data_preprocessor.size=(64,64)',
        'model.decode_head.norm_cfg.type=BN',
        'model.auxiliary_head.norm_cfg.type=BN',
        'default_hooks.logger.interval=1',
        'default_hooks.checkpoint.interval=2',
        'train_cfg.val_interval=4',
    ]


@pytest.fixture(scope='module')
def trained(options, tmp_path_factory):
    """A folder in which training ran for four iterations."""
    cwd = tmp_path_factory.mktemp('run')
    log = run_tool(
        'train.py', CONFIG, *options, 'train_cfg.max_iters=4', cwd=cwd
    )
    return cwd, log


def losses(log):
    found = re.findall(r'Iter\(train\) *\[ *(\d+)/.*? loss: ([\d.]+)', log)
    return {int(i): float(loss) for i, loss in found}


def test_train_logs_and_validates(trained):
    cwd, log = trained
    assert sorted(losses(log)) == [1, 2, 3, 4]
    assert 'mIoU' in log
    assert (cwd / 'work/iter_4.pth').is_file()


def test_resume_goes_on_as_if_never_stopped(trained, options):
    cwd, log = trained
    resumed = cwd / 'resumed'
    shutil.copytree(cwd / 'work', resumed / 'work')
    checkpoint = resumed / 'work/iter_2.pth'
    log2 = run_tool(
        *('train.py', CONFIG, '--resume', checkpoint, *options),
        'train_cfg.max_iters=4',
        cwd=resumed,
    )
    assert sorted(losses(log2)) == [3, 4]
    # From the newest checkpoint of the work dir, which has come to its end.
    log3 = run_tool(
        *('train.py', CONFIG, '--resume', *options),
        'train_cfg.max_iters=5',
        cwd=resumed,
    )
    assert sorted(losses(log3)) == [5]


def test_test_evaluates_writes_and_draws(trained, options, shapes):
    cwd, log = trained
    again = run_tool(
        *('test.py', CONFIG, 'work/iter_4.pth'),
        *('--out', 'maps', '--show-dir', 'drawn'),
        *options,
        cwd=cwd,
    )
    trained_miou, tested_miou = (
        re.findall(r'(?<!Best )mIoU: ([\d.]+)', text)[-1]
        for text in (log, again)
    )
    assert trained_miou == tested_miou
    truth = sorted((shapes / 'annotations/validation').glob('*.png'))
    for path in truth:
        labels = cv2.imread(str(cwd / 'maps' / path.name), -1)
        assert labels.shape == (64, 64)
        assert set(np.unique(labels)) <= set(range(1, 9))
    assert len(list(cwd.glob('drawn/**/*.png'))) == len(truth)


def test_tta(trained, options):
    cwd, _ = trained
    message = run_tool(
        *('test.py', CONFIG, 'work/iter_4.pth', '--tta', *options),
        cwd=cwd,
        ok=False,
    )
    assert 'tta_pipeline' in message
    assert 'Traceback' not in message


def test_amp_on_a_cpu_is_bfloat16(options, tmp_path):
    if torch.cuda.is_available():
        pytest.skip('this host would train in float16')
    log = run_tool(
        *('train.py', CONFIG, '--amp', *options, 'train_cfg.max_iters=2'),
        cwd=tmp_path,
    )
    assert "type='CPUAmpOptimWrapper'" in log
    assert len(losses(log)) == 2


def test_two_processes_train_and_evaluate(trained, options):
    """What two processes measure while training is what one measures."""
    cwd, log = trained
    distributed = cwd / 'distributed'
    distributed.mkdir()
    # One thread in all runs: sums in another order move cluster borders.
    same = dict(PORT=free_port(), OMP_NUM_THREADS='1')
    train_log = run(
        *(TOOLS / 'dist_train.sh', CONFIG, 2, *options),
        'train_cfg.max_iters=4',
        cwd=distributed,
        **same,
    )
    assert sorted(losses(train_log)) == [1, 2, 3, 4]
    one = run_tool(
        *('test.py', CONFIG, 'work/iter_4.pth', *options),
        cwd=distributed,
        **same,
    )
    two = run(
        *(TOOLS / 'dist_test.sh', CONFIG, 'work/iter_4.pth', 2, *options),
        cwd=distributed,
        **same,
    )
    first, second, third = (
        re.findall(r'aAcc: [\d.]+  mIoU: [\d.]+  mAcc: [\d.]+', text)[-1]
        for text in (train_log, one, two)
    )
    assert first == second == third


@pytest.mark.parametrize(
    ('args', 'message'),
    [
        (['train.py', 'no.py'], 'there is no config file no.py'),
        (['train.py', CONFIG], '--data-root DIR'),
        (
            ['train.py', CONFIG, '--resume', 'no.pth'],
            'there is no checkpoint no.pth',
        ),
        (['test.py', CONFIG, 'no.pth'], 'there is no checkpoint no.pth'),
        (
            ['train.py', CONFIG, '--auto-scale-lr'],
            'auto_scale_lr = dict(base_batch_size=...)',
        ),
    ],
)
def test_errors_are_one_paragraph(args, message, shapes, tmp_path):
    if args[-1] != CONFIG:
        args = [*args, '--data-root', shapes]
    text = run_tool(*args, cwd=tmp_path, ok=False)
    assert message in text
    assert 'Traceback' not in text


@pytest.mark.parametrize(
    ('config', 'option'),
    [
        ('dynamicvit_shapes', 'model.pretrained'),
        ('distill_evit_shapes', 'model.teacher.init_cfg.checkpoint'),
    ],
)
def test_missing_weights_to_start_from(config, option, tmp_path):
    data = make_shapes('classification', tmp_path / 'data', num=50, size=32)
    path = ROOT / f'configs/quickstart/{config}.py'
    text = run_tool(
        *('train.py', path, '--data-root', data), cwd=tmp_path, ok=False
    )
    assert f'--cfg-options {option}=FILE' in text
    assert 'work_dirs/deit_shapes/epoch_20.pth' in text
    assert 'Traceback' not in text


def test_missing_data_says_where_to_get_it(tmp_path):
    """The command of the README on a checkout without the data."""
    config = ROOT / 'configs/clustr/upernet_clustr_s_ade20k.py'
    text = run_tool('train.py', config, cwd=tmp_path, ok=False)
    error = text[text.index('error:') :]
    assert str(tmp_path / 'data/ade/ADEChallengeData2016') in error
    assert 'ADEChallengeData2016.zip' in error
    assert '--data-root DIR' in error
    assert 'Traceback' not in text
    assert len(error.splitlines()) <= 5


def test_quickstart_from_end_to_end(tmp_path):
    """In little, as the real one takes minutes."""
    copy = tmp_path / 'checkout'
    for name in ('tools', 'configs', 'clustr_mm'):
        shutil.copytree(ROOT / name, copy / name)
    config = copy / 'configs/quickstart/upernet_clustr_shapes.py'
    text = config.read_text()
    text = re.sub(r'max_iters=\d+', 'max_iters=2', text)
    config.write_text(re.sub(r'val_interval=\d+', 'val_interval=2', text))
    tool = copy / 'tools/quickstart.py'
    log = run(sys.executable, tool, '--num', 10, cwd=tmp_path)
    assert re.search(r'mIoU 0\.\d\d on pictures', log)
    pictures = sorted((tmp_path / 'work_dirs/quickstart').glob('pictures/*'))
    assert str(pictures[0].parent) in log
    metrics = next((tmp_path / 'work_dirs').glob('quickstart/work/*/*.json'))
    assert 'mIoU' in json.loads(metrics.read_text())
    image = cv2.imread(str(pictures[0]))
    assert image.shape == (160, 3 * 160 + 8, 3)


@pytest.mark.parametrize(
    ('script', 'args', 'command'),
    [
        ('slurm_train.sh', ['c.py'], 'train.py c.py --amp --launcher slurm'),
        (
            'slurm_test.sh',
            ['c.py', 'w.pth'],
            'test.py c.py w.pth --amp --launcher slurm',
        ),
    ],
)
def test_slurm_scripts_ask_for_what_they_should(
    script, args, command, tmp_path
):
    """Against an srun that only says what it was asked."""
    (tmp_path / 'srun').write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / 'srun').chmod(0o755)
    asked = run(
        *(TOOLS / script, 'gpu', 'job', *args, '--amp'),
        cwd=tmp_path,
        PATH=f'{tmp_path}:{os.environ["PATH"]}',
        GPUS='4',
        SRUN_ARGS='--quotatype=spot --exclusive',
    )
    assert '--partition gpu --job-name job --gres gpu:4 --ntasks 4' in asked
    assert '--quotatype=spot --exclusive' in asked
    assert asked.strip().endswith(f'/{command}')
