"""The remaining time is right, and so is what is said at the end."""

import re
import sys
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook, IterTimerHook
from mmengine.model import BaseModel
from mmengine.registry import HOOKS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from torch.utils.data import DataLoader

from clustr_mm.runs import eta
from clustr_mm.runs.summary import SummaryHook
from clustr_mm.shapes import make_shapes
from tests.runs import ROOT, run, run_tool


class Clock:
    """A clock that stands still unless something takes its time."""

    now = 1000.0

    def time(self):
        return self.now


class Slow(BaseModel):
    """A model whose steps take so many seconds, and its first ones longer."""

    def __init__(self, clock, step=2.0, predict=0.5, first=30.0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.clock, self.step = clock, step
        self.predict, self.first = predict, first
        self.steps = 0

    def forward(self, inputs, mode='tensor'):
        if mode == 'loss':
            self.steps += 1
            self.clock.now += self.first if self.steps <= 2 else self.step
            return dict(loss=self.weight.sum())
        self.clock.now += self.predict
        return [inputs]


class Score(BaseMetric):
    """Best at the second validation."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        self.number += 1
        return dict(score=[0, 0.25, 0.75, 0.5][min(self.number, 3)])


class Spy(Hook):
    """Notes what is said to remain, and how long a checkpoint takes."""

    priority = 'VERY_LOW'

    def __init__(self, clock):
        self.clock, self.told = clock, []

    def after_train_iter(self, runner, *args, **kwargs):
        left = runner.message_hub.get_info('eta')
        self.told.append((self.clock.now, left))

    def after_train_epoch(self, runner):
        self.clock.now += 3


def loader(num):
    return dict(
        batch_size=4,
        num_workers=0,
        dataset=[dict(inputs=torch.zeros(1))] * num,
        sampler=dict(type='DefaultSampler', shuffle=False),
        collate_fn=dict(type='default_collate'),
    )


def runner(tmp_path, clock, timer, hooks=(), **train_cfg):
    return Runner(
        model=Slow(clock),
        work_dir=str(tmp_path),
        experiment_name=f'{tmp_path.name}_{timer}',
        train_dataloader=loader(80),
        train_cfg=train_cfg,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        val_dataloader=loader(40),
        val_cfg={},
        val_evaluator=[Score()],
        default_hooks=dict(
            timer=dict(type=timer),
            checkpoint=dict(
                type='CheckpointHook', save_best='score', rule='greater'
            ),
        ),
        custom_hooks=list(hooks),
        log_level='ERROR',
    )


BY_EPOCH = dict(by_epoch=True, max_epochs=10)
LOOPS = {
    'each epoch': BY_EPOCH,
    'every third epoch': dict(BY_EPOCH, val_interval=3),
    'by iterations': dict(by_epoch=False, max_iters=190, val_interval=25),
    'late': dict(by_epoch=False, max_iters=190, val_begin=100, val_interval=9),
}


def worst(tmp_path, timer, train_cfg):
    """The largest error of the remaining time after the first minute, until
    a tenth of the run is left."""
    clock = Clock()
    spy = Spy(clock)
    with (
        mock.patch('mmengine.hooks.iter_timer_hook.time', clock),
        # It sleeps for two seconds at the end of each epoch.
        mock.patch('mmengine.runner.loops.time', mock.Mock()),
        mock.patch.object(eta, 'time', clock),
    ):
        start = clock.now
        runner(tmp_path, clock, timer, [spy], **train_cfg).train()
    end = clock.now
    errors = [
        abs(left / (end - now) - 1)
        for now, left in spy.told[eta.WARM_UP + 2 :]
        if now > start + 60 and end - now > (end - start) / 10
    ]
    assert len(errors) > 100
    return max(errors)


@pytest.mark.parametrize('loop', LOOPS)
def test_remaining_time_is_right_within_a_tenth(loop, tmp_path):
    assert worst(tmp_path, 'WholeRunTimerHook', LOOPS[loop]) < 0.1
    # By MMEngine's own timer it is not.
    assert worst(tmp_path, 'IterTimerHook', LOOPS[loop]) > 0.1


@pytest.mark.parametrize('by_epoch', [True, False])
def test_validations_are_counted_as_the_loops_do(by_epoch):
    kind = EpochBasedTrainLoop if by_epoch else IterBasedTrainLoop
    length = 3 if by_epoch else 1
    for end in (1, 4, 12, 13):
        for begin in (1, 5, 20):
            for interval in (1, 4, 50):
                loop = mock.Mock(spec=kind)
                loop.val_begin, loop.val_interval = begin, interval
                loop.dataloader = range(length)
                fake = SimpleNamespace(
                    train_loop=loop, val_loop=1, max_iters=end * length
                )
                for done in range(1, end * length + 1):
                    # Those after `done` iterations, the one at once too.
                    after = [
                        step
                        for step in range(1, end + 1)
                        if step * length >= done
                        and step >= begin
                        and (step % interval == 0 or step == end)
                    ]
                    left = eta._validations_left(fake, done)
                    assert left == len(after)


@pytest.mark.parametrize('batch_size', [1, 8, None])
def test_a_validation_costs_as_many_forward_passes_as_it_has_pictures(
    batch_size,
):
    """A third of a training step each, however they are batched."""
    fake = SimpleNamespace(
        train_dataloader=DataLoader(range(20), batch_size=4),
        val_dataloader=DataLoader(range(80), batch_size=batch_size),
    )
    assert eta._relative_cost(fake) == pytest.approx(80 / 4 / 3)


def test_without_validation(tmp_path):
    clock, train_cfg = Clock(), dict(by_epoch=True, max_epochs=4)
    with mock.patch.object(eta, 'time', clock):
        spy = Spy(clock)
        made = Runner(
            model=Slow(clock),
            work_dir=str(tmp_path),
            experiment_name='no_validation',
            train_dataloader=loader(80),
            train_cfg=train_cfg,
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            default_hooks=dict(timer=dict(type='WholeRunTimerHook')),
            custom_hooks=[spy],
            log_level='ERROR',
        )
        made.train()
    now, left = spy.told[40]
    assert abs(left / (clock.now - now) - 1) < 0.1


def test_timer_is_mmengines():
    hook = HOOKS.build(dict(type='WholeRunTimerHook'))
    assert isinstance(hook, IterTimerHook)


# The end.
def test_end_tells_the_best(tmp_path):
    clock, lines = Clock(), []
    made = runner(
        tmp_path, clock, 'IterTimerHook', [SummaryHook()], **BY_EPOCH
    )
    with mock.patch.object(made.logger, 'info', lines.append):
        made.train()
    best = tmp_path / 'best_score_epoch_2.pth'
    assert best.is_file()
    assert lines[-2] == f'Best score: 0.75, {best}'
    pattern = rf'To test it: python tools/test.py {tmp_path}/\S+\.py {best}'
    assert re.fullmatch(pattern, lines[-1])


def test_end_tells_the_last_where_none_is_the_best(tmp_path):
    lines = []
    made = runner(
        tmp_path, Clock(), 'IterTimerHook', [SummaryHook()], **BY_EPOCH
    )
    for hook in made.hooks:
        if hasattr(hook, 'save_best'):
            hook.save_best, hook.key_indicators = None, []
    with mock.patch.object(made.logger, 'info', lines.append):
        made.train()
    last = tmp_path / 'epoch_10.pth'
    assert lines[-2] == f'Last checkpoint: {last}'
    assert lines[-1].endswith(f' {last}')


def test_the_command_tests_what_was_trained(tmp_path):
    """With the tools, as a user runs them."""
    pytest.importorskip('mmpretrain')
    data = tmp_path / 'data'
    make_shapes('classification', data, num=24, size=32, val=0.5)
    log = run_tool(
        'train.py',
        ROOT / 'configs/quickstart/evit_shapes.py',
        *('--data-root', data, '--work-dir', tmp_path / 'work'),
        *('--cfg-options', 'train_cfg.max_epochs=1'),
        *('train_dataloader.batch_size=8', 'train_dataloader.num_workers=0'),
        *('val_dataloader.num_workers=0', 'test_dataloader.num_workers=0'),
        *('train_dataloader.persistent_workers=False',),
        *('val_dataloader.persistent_workers=False',),
        *('test_dataloader.persistent_workers=False',),
        cwd=ROOT,
    )
    score = re.search(r'Best accuracy/top1: (\S+), ', log)[1]
    command = re.search(r'To test it: python (.*)', log)[1].split()
    again = run(sys.executable, *command, cwd=ROOT)
    tested = re.findall(r'accuracy/top1: (\S+)', again)[-1]
    assert float(tested) == pytest.approx(float(score), abs=0.01)
