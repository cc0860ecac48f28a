"""The smoke test of the configs: what it swaps, and what it lets pass."""

import argparse
import importlib
import json
import re

import pytest
from mmengine.config import Config, DictAction

from clustr_mm import configs
from clustr_mm.errors import UserError
from clustr_mm.runs import smoke
from clustr_mm.shapes import make_shapes
from tests.runs import ROOT, TOOLS, run_tool

CONFIGS = ROOT / 'configs'
slow = pytest.mark.slow


def test_main_configs_are_the_matrix():
    names = {path.stem for path in smoke.main_configs(CONFIGS)}
    assert len(names) > 30
    assert names > set(smoke.CLASSIFIERS)
    for method in ('clustr_s', 'hvt_s1', 'evit_s_k07', 'dynamicvit_s_k07'):
        for use in (
            'upernet_{}_ade20k',
            'fpn_{}_ade20k',
            'mask_rcnn_{}_coco',
            'retinanet_{}_coco',
            'pose_{}_wholebody',
        ):
            assert use.format(method) in names
    assert not any('shapes' in name or 'sra' in name for name in names)
    some = smoke.main_configs(CONFIGS, 'mask_rcnn*_s_')
    assert {path.parent.name for path in some} > {'clustr', 'evit'}
    with pytest.raises(UserError, match="'nothing' fits no"):
        smoke.main_configs(CONFIGS, 'nothing')


@pytest.mark.parametrize(
    'path', smoke.main_configs(CONFIGS), ids=lambda path: path.stem
)
def test_options_say_only_what_a_config_has(path):
    """As the tools read them."""
    cfg = Config.fromfile(path)
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    found = smoke.options(cfg)
    arguments = configs.as_arguments(found)
    parsed = parser.parse_args(['--cfg-options', *arguments]).cfg_options
    assert parsed == found
    new = ('classes', 'persistent_workers', 'window_size', 'interval')
    for key in found:
        node = cfg
        if key.endswith(new):
            continue
        for part in key.split('.'):
            node = node[int(part) if isinstance(node, list) else part]
    cfg.merge_from_dict(parsed)
    assert cfg.train_dataloader.batch_size <= 8


@pytest.fixture
def judge(tmp_path, monkeypatch):
    """The outcome of a run that leaves such logs, without the run."""

    def run(tool, arguments, log):
        folder = log.parent / 'time'
        (folder / 'vis_data').mkdir(parents=True, exist_ok=True)
        if tool.name == 'train.py':
            lines = [json.dumps(dict(loss=loss)) for loss in losses]
            text = '\n'.join([*lines, '{"mIoU": 1}'])
            (folder / 'vis_data/scalars.json').write_text(text)
            (log.parent / 'last_checkpoint').write_text('last.pth')
        else:
            (folder / 'time.json').write_text(json.dumps(metrics))

    def outcome(its_losses, its_metrics):
        losses[:] = its_losses
        metrics.update(its_metrics)
        return smoke.try_config(
            CONFIGS / 'evit/fpn_evit_s_k07_ade20k.py', TOOLS, tmp_path
        )

    losses, metrics = [], {}
    monkeypatch.setattr(smoke, '_run', run)
    return outcome


@pytest.mark.parametrize(
    ('losses', 'metrics', 'error'),
    [
        ([3, 2, 1], dict(mIoU=0.5), ''),
        ([1, 2, 3], dict(mIoU=0.5), 'does not fall'),
        ([3, 3, 3], dict(mIoU=0.5), 'does not fall'),
        ([3, float('nan'), 1], dict(mIoU=0.5), 'losses are'),
        ([3], dict(mIoU=0.5), 'losses are'),
        ([3, 2, 1], dict(aAcc=0.5), 'mIoU is None'),
        ([3, 2, 1], dict(mIoU=float('nan')), 'mIoU is nan'),
        ([3, 2, 1], dict(mIoU=-1), 'mIoU is -1'),
    ],
)
def test_judgement(judge, losses, metrics, error):
    outcome = judge(losses, metrics)
    assert error in outcome.error
    assert bool(outcome.error) == bool(error)


def test_tool_fails_with_a_config(monkeypatch, capsys, tmp_path):
    """And goes on with the others first."""
    monkeypatch.syspath_prepend(str(TOOLS))
    tool = importlib.import_module('smoke')

    def try_config(path, tools, out):
        error = 'it burns' if 'evit' in path.stem else ''
        return smoke.Outcome(path.stem, 3, 2, 0.5, 1, error)

    monkeypatch.setattr(tool, 'try_config', try_config)
    monkeypatch.setattr('sys.argv', ['smoke.py', '--only', 'fpn*_s'])
    with pytest.raises(SystemExit) as exit_:
        tool.main()
    assert exit_.value.code
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == '4 of 5 train'
    assert sum('it burns' in line for line in lines) == 2  # now and at last
    monkeypatch.setattr('sys.argv', ['smoke.py', '--only', 'hvt_s1'])
    with pytest.raises(SystemExit) as exit_:
        tool.main()
    assert not exit_.value.code


def test_data_of_another_size_is_not_overwritten(tmp_path):
    make_shapes('segmentation', tmp_path / 'out/segmentation', 10, size=48)
    log = run_tool(
        *('smoke.py', '--only', 'fpn_evit', '--out', 'out'),
        cwd=tmp_path,
        ok=False,
    )
    assert 'holds a generated set with num 10' in log
    assert 'Traceback' not in log


def test_page_names_main_configs():
    text = (ROOT / 'docs/tasks.md').read_text()
    names = set(
        re.findall(r'`(\w+_(?:imagenet|ade20k|coco|wholebody))`', text)
    )
    assert len(names) == 30
    assert names <= {path.stem for path in smoke.main_configs(CONFIGS)}


@pytest.mark.parametrize(
    'name',
    [
        'hvt/fpn_hvt_s1_ade20k',
        pytest.param('clustr/clustr_s_imagenet', marks=slow),
        pytest.param('evit/upernet_evit_s_k07_ade20k', marks=slow),
        pytest.param('clustr/mask_rcnn_clustr_t_coco', marks=slow),
        pytest.param('dynamicvit/retinanet_dynamicvit_s_k07_coco', marks=slow),
        pytest.param(
            'token_pooling/pose_token_pooling_s_k07_wholebody', marks=slow
        ),
    ],
)
def test_diagonal_trains(name, tmp_path):
    """One cell of each use, from end to end."""
    log = run_tool('smoke.py', '--only', name, '--out', 'out', cwd=tmp_path)
    assert '1 of 1 train' in log
    assert not list(tmp_path.rglob('*.pth'))
