"""What makes a run stands in its config, whoever runs that."""

import importlib.util
import inspect
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from clustr_mm import configs
from clustr_mm.checkpoints.safe_loading import load
from clustr_mm.runs import prepare as steps
from clustr_mm.runs.prepare import FOR_TESTING, FOR_TRAINING, STEPS, prepare
from tests import small_training
from tests.runs import ROOT, run, run_tool

# Nothing of ours is imported but what the config names.
MMENGINE = """
import sys
from mmengine.config import Config
from mmengine.runner import Runner
cfg = Config.fromfile(sys.argv[1])
cfg.work_dir = sys.argv[2]
Runner.from_cfg(cfg).train()
"""


def test_steps_can_be_listed():
    for step in {*STEPS, *FOR_TRAINING, *FOR_TESTING}:
        assert inspect.isfunction(step)
        assert step.__doc__
        assert not step.__name__.startswith('_')
    names = [step.__name__ for step in STEPS]
    assert len(set(names)) == len(names)


@pytest.fixture
def cfg():
    return Config(
        dict(
            model=dict(type='A', init_cfg=dict(type='Pretrained')),
            custom_imports=dict(imports='mmengine.hooks'),
            custom_hooks=[dict(type='EMAHook')],
            train_cfg=dict(by_epoch=False, max_iters=2),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        )
    )


@pytest.mark.parametrize(
    ('optimizer', 'expected'),
    [
        (dict(type='AdamW', lr=0.1), True),
        (dict(type='torch.optim.AdamW', lr=0.1), True),
        (dict(type='AdamW', lr=0.1, foreach=True), None),
        (dict(type='AdamW', lr=0.1, fused=False), False),
        (dict(type='LBFGS', lr=0.1), None),
        (dict(type='Lion', lr=0.1), None),
    ],
)
def test_a_gpu_steps_in_few_launches(optimizer, expected, cfg, monkeypatch):
    cfg.optim_wrapper.optimizer = optimizer
    given = cfg.to_dict()
    assert steps.fused_steps(Config(given)).to_dict() == given
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    prepared = steps.fused_steps(Config(given)).optim_wrapper.optimizer
    assert prepared.get('fused') is expected
    monkeypatch.undo()


def test_only_a_copy_is_changed(cfg):
    before = cfg.to_dict()
    prepared = prepare(cfg)
    assert cfg.to_dict() == before
    assert prepare(prepared).to_dict() == prepared.to_dict()


def test_what_is_named(cfg, tmp_path):
    """And found again in what a dump of the config is read as."""
    prepare(cfg).dump(tmp_path / 'dumped.py')
    found = Config.fromfile(tmp_path / 'dumped.py')
    assert found.runner_type == 'CheckedRunner'
    assert found.train_cfg == dict(type='ResumableIterLoop', max_iters=2)
    assert found.default_hooks.checkpoint.type == 'AtomicCheckpointHook'
    assert [hook.type for hook in found.custom_hooks] == [
        'EMAHook',
        'CheckCompatibility',
        'CheckLabels',
        'CheckClasses',
        'StopOnBadLoss',
        'SummaryHook',
    ]
    assert found.custom_imports.imports == ['mmengine.hooks', *steps.MODULES]


def test_what_the_user_decided_stays(cfg):
    cfg.train_cfg = dict(type='MyLoop')
    cfg.default_hooks = dict(checkpoint=None, bad_loss=None)
    cfg.runner_type = 'MyRunner'
    found = prepare(cfg)
    assert found.train_cfg == dict(type='MyLoop')
    assert found.default_hooks == dict(checkpoint=None, bad_loss=None)
    assert 'StopOnBadLoss' not in [h.type for h in found.custom_hooks]
    assert found.runner_type == 'MyRunner'


@pytest.mark.parametrize('launcher', ['none', 'pytorch'])
def test_sharded(launcher, cfg):
    sharded = Config.fromfile(ROOT / 'configs/_base_/sharded.py')
    cfg.merge_from_dict(dict(sharded, launcher=launcher))
    found = prepare(cfg)
    is_sharded = launcher != 'none'
    assert ('strategy' in found) == is_sharded
    assert (steps.SHARDING in configs.imports_of(found)) == is_sharded
    kind = 'CheckedFlexibleRunner' if is_sharded else 'CheckedRunner'
    assert found.runner_type == kind


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A training by our tool, and the dump of its config."""
    pytest.importorskip('mmpretrain')
    folder = tmp_path_factory.mktemp('trained')
    options = small_training.write(folder, random=True)
    run_tool('train.py', *options, cwd=folder)
    (dump,) = (folder / 'work').glob('*/vis_data/config.py')
    return folder, dump


def toolbox_tool():
    """MMPretrain's own script."""
    package = Path(importlib.util.find_spec('mmpretrain').origin).parent
    for folder in (package / '.mim', package.parent):
        if (folder / 'tools/train.py').is_file():
            return folder / 'tools/train.py'
    return pytest.skip('MMPretrain was installed without its tools')


def losses(work):
    return {row['step']: row['loss'] for row in small_training.logged(work)}


def check_same(work, trained):
    expected = trained[0] / 'work'
    assert losses(work) == losses(expected)
    for name in ('iter_2.pth', 'iter_4.pth'):
        ours, theirs = load(expected / name), load(work / name)
        assert (
            theirs['random_states'][0]['python']
            == (ours['random_states'][0]['python'])
        )
        torch.testing.assert_close(
            theirs['state_dict'], ours['state_dict'], rtol=0, atol=0
        )


def test_mmengine_runs_the_dump_alike(trained, tmp_path):
    work = tmp_path / 'work'
    command = (sys.executable, '-c', MMENGINE, trained[1], work)
    run(*command, cwd=tmp_path, PYTHONPATH=str(ROOT))
    check_same(work, trained)


def test_a_toolbox_resumes_the_dump_alike(trained, tmp_path):
    """As if it had never been interrupted, random numbers included."""
    work = tmp_path / 'work'
    work.mkdir()
    half = work / 'iter_2.pth'
    shutil.copy(trained[0] / 'work/iter_2.pth', half)
    (work / 'last_checkpoint').write_text(str(half))
    command = (sys.executable, toolbox_tool(), trained[1], '--resume')
    run(*command, '--work-dir', work, cwd=tmp_path, PYTHONPATH=str(ROOT))
    expected = losses(trained[0] / 'work')
    assert losses(work) == {step: expected[step] for step in (3, 4)}
    shutil.rmtree(work)
    run(
        *(sys.executable, toolbox_tool(), trained[1], '--work-dir', work),
        cwd=tmp_path,
        PYTHONPATH=str(ROOT),
    )
    check_same(work, trained)


def test_mmengine_refuses_alike(trained, tmp_path):
    """A label without a class, and a checkpoint of something else."""
    cfg = Config.fromfile(trained[1])
    cfg.model.head.num_classes = 2
    cfg.dump(tmp_path / 'few.py')
    foreign = tmp_path / 'foreign.pth'
    torch.save(dict(state_dict={'conv1.weight': torch.ones(2)}), foreign)
    cfg = Config.fromfile(trained[1])
    cfg.load_from = str(foreign)
    cfg.dump(tmp_path / 'foreign.py')
    for name, message in (
        ('few', 'UserError: .* has the label [234], but the LinearClsHead'),
        ('foreign', 'UserError: .*foreign.pth is of another model'),
    ):
        text = run(
            *(sys.executable, '-c', MMENGINE, tmp_path / f'{name}.py'),
            tmp_path / 'work',
            cwd=tmp_path,
            ok=False,
            PYTHONPATH=str(ROOT),
        )
        assert re.search(message, text), text[-3000:]
