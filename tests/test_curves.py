"""Curves hold what MMEngine logged, however often a run was resumed."""

import json

import matplotlib.pyplot as plt
import mmcv
import pytest

from clustr_mm.analysis.curves import plot, read_run, usual_metric
from clustr_mm.errors import UserError
from tests.runs import run_tool


def log(work_dir, name, *entries, end='\n'):
    """A log as MMEngine writes it."""
    file = work_dir / name / 'vis_data/scalars.json'
    file.parent.mkdir(parents=True)
    file.write_text('\n'.join(map(json.dumps, entries)) + end)
    return file


def train(iteration, loss, **more):
    return dict(
        lr=0.1, loss=loss, time=0.5, epoch=1, iter=iteration, step=iteration
    ) | dict(more)


def val(step, **metrics):
    return dict(metrics, data_time=0.1, time=0.2, step=step)


@pytest.fixture
def work_dir(tmp_path):
    root = tmp_path / 'evit'
    log(
        root,
        '20260101_000000',
        train(10, 3.0),
        train(20, 2.0, loss_cls=1.5),
        val(1, **{'accuracy/top5': 70, 'accuracy/top1': 50.0}),
        train(30, 9.0),
    )
    # Resumed from iteration 20.
    log(
        root,
        '20260102_000000',
        train(30, 1.5),
        train(40, 1.0),
        val(2, **{'accuracy/top5': 80, 'accuracy/top1': 60.0}),
    )
    (root / 'evit.py').write_text(
        "default_hooks = dict(checkpoint=dict(save_best='accuracy/top1'))\n"
    )
    return root


def test_points_are_those_of_the_log(work_dir):
    run = read_run(str(work_dir))
    assert run.name == 'evit'
    assert run.training == {
        'loss': [(10, 3.0), (20, 2.0), (30, 1.5), (40, 1.0)],
        'loss_cls': [(20, 1.5)],
    }
    # By the iteration, though MMEngine counts epochs here.
    assert run.validation == {
        'accuracy/top5': [(20, 70), (40, 80)],
        'accuracy/top1': [(20, 50.0), (40, 60.0)],
    }
    assert usual_metric(str(work_dir), run) == 'accuracy/top1'
    (work_dir / 'evit.py').unlink()
    assert usual_metric(str(work_dir), run) == 'accuracy/top5'


def test_a_cut_last_line_is_left_out(work_dir):
    file = log(work_dir, '20260103_000000', train(50, 0.5))
    file.write_text(file.read_text() + '{"loss": 0.4, "it')
    assert read_run(str(work_dir)).training['loss'][-1] == (50, 0.5)
    file.write_text('{"loss"\n' + file.read_text())
    with pytest.raises(UserError, match='line 1 of .* is no JSON'):
        read_run(str(work_dir))


def test_missing_runs(tmp_path):
    with pytest.raises(UserError, match='no work dir'):
        read_run(str(tmp_path / 'no'))
    with pytest.raises(UserError, match='has no curves'):
        read_run(str(tmp_path))
    log(tmp_path, 'empty', end='')
    with pytest.raises(UserError, match='has no curves'):
        read_run(str(tmp_path))


def test_a_panel_a_name_and_a_curve_a_run(work_dir, tmp_path, monkeypatch):
    other = tmp_path / 'hvt'
    log(other, 'a', train(10, 4.0), train(20, float('nan')), train(30, 3.0))
    runs = [read_run(str(work_dir)), read_run(str(other))]
    drawn = []
    from matplotlib.figure import Figure

    save = Figure.savefig
    monkeypatch.setattr(
        Figure,
        'savefig',
        lambda self, *args, **kwargs: (
            drawn.append(self),
            save(self, *args, **kwargs),
        ),
    )
    plot(runs, ['loss', 'accuracy/top1'], tmp_path / 'curves.png')
    left, right = drawn[0].axes
    assert [axes.get_title() for axes in (left, right)] == [
        'loss',
        'accuracy/top1',
    ]
    curves = [line.get_xydata().tolist() for line in left.lines]
    assert curves == [
        [[10, 3], [20, 2], [30, 1.5], [40, 1]],
        [[10, 4], [30, 3]],
    ]
    assert right.lines[0].get_xydata().tolist() == [[20, 50], [40, 60]]
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert labels == ['evit', 'hvt']
    assert mmcv.imread(tmp_path / 'curves.png').shape[2] == 3
    # Nothing is left open.
    assert not plt.get_fignums()


def test_tool(work_dir, tmp_path):
    told = run_tool('plot_log.py', work_dir, cwd=tmp_path)
    assert told.splitlines() == [
        'evit: loss 1 at iteration 40',
        'evit: accuracy/top1 60 at iteration 40',
        'curves.png',
    ]
    assert mmcv.imread(tmp_path / 'curves.png') is not None
    for wrong, message in (
        (['--keys', 'mIoU'], 'no run has logged mIoU; there are loss, '),
        (['--out', 'curves.xyz'], 'cannot draw curves.xyz'),
        (['--out', str(tmp_path)], 'is a folder'),
    ):
        told = run_tool(
            'plot_log.py', work_dir, *wrong, cwd=tmp_path, ok=False
        )
        assert message in told
        assert 'Traceback' not in told
