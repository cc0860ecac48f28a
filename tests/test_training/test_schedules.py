"""Hooks in real runs, interrupted ones among them."""

import math

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import init_default_scope

import clustr_mm.runs.cpu  # noqa: F401
from tests.test_training.small import classifier, runner

pytest.importorskip('mmpretrain')

from clustr_mm.training import sparsification  # noqa: F401


@pytest.fixture(autouse=True)
def _scope():
    yield
    init_default_scope('mmengine')


class Watch(Hook):
    """Call a function on the model after each iteration."""

    priority = 'VERY_LOW'

    def __init__(self, look):
        self.look, self.seen = look, []

    def after_train_iter(self, runner, *args, **kwargs):
        self.seen.append(self.look(runner.model))


def keeps(model):
    return [reducer.keep for reducer in model.backbone.reducers]


SCHEDULE = dict(type='KeepRateSchedule', begin=1, end=3)


def expected(iteration, target):
    """The published schedule, four iterations an epoch."""
    if iteration < 4:
        return 1
    if iteration >= 12:
        return target
    cosine = math.cos((iteration - 4) / (12 - 4) * math.pi)
    return target + (1 - target) * 0.5 * (1 + cosine)


def test_keep_rate_falls_along_a_cosine(tmp_path):
    watch = Watch(keeps)
    model = classifier('EViT')
    first, *_ = keeps(model)
    runner(model, tmp_path, hooks=[SCHEDULE, watch]).train()
    assert len(watch.seen) == 16
    for iteration, seen in enumerate(watch.seen):
        assert seen == pytest.approx([expected(iteration, 0.7)] * len(seen))
    assert first == keeps(model)[0] == 0.7


def test_keep_rate_is_at_its_value_after_a_resume(tmp_path):
    runner(classifier('EViT'), tmp_path, epochs=2, hooks=[SCHEDULE]).train()
    watch = Watch(keeps)
    model = classifier('EViT')
    resumed = runner(
        model,
        tmp_path,
        hooks=[SCHEDULE, watch],
        resume=True,
        load_from=str(tmp_path / 'epoch_2.pth'),
    )
    resumed.train()
    assert len(watch.seen) == 8
    assert watch.seen[0] == pytest.approx(
        [expected(8, 0.7)] * len(watch.seen[0])
    )
    assert watch.seen[0][0] == pytest.approx(0.85)
    assert watch.seen[4] == keeps(model)


def test_blocks_fall_to_targets_of_their_own(tmp_path):
    watch = Watch(keeps)
    model = classifier('EViT', backbone=dict(keep=[1, 0.8, 0.5, 1]))
    runner(model, tmp_path, epochs=3, hooks=[SCHEDULE, watch]).train()
    halfway = watch.seen[8]
    assert halfway == pytest.approx([0.9, 0.75])


def test_keep_rate_may_fall_from_the_beginning(tmp_path):
    watch = Watch(keeps)
    hook = dict(SCHEDULE, begin=0, end=2)
    runner(classifier('EViT'), tmp_path, epochs=2, hooks=[hook, watch]).train()
    assert [seen[0] for seen in watch.seen] == pytest.approx(
        [expected(iteration, 0.7) for iteration in range(4, 12)]
    )


def test_schedule_needs_an_evit(tmp_path):
    with pytest.raises(ValueError, match='needs an EViT'):
        runner(classifier('ThinViT'), tmp_path, hooks=[SCHEDULE]).train()
    bad = dict(type='KeepRateSchedule', begin=3, end=3)
    with pytest.raises(ValueError, match='cannot fall'):
        runner(classifier('EViT'), tmp_path, hooks=[bad])


def sparse():
    return classifier(
        'DynamicViT', type='SparseClassifier', kl_weight=0, token_weight=0
    )


FREEZE = dict(type='FreezeUntil', epoch=2, trained=['predictor'])


def clones(model):
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def moved(before, after):
    return {n for n in before if not torch.equal(before[n], after[n])}


@pytest.mark.parametrize(
    'wrapper', [{}, dict(accumulative_counts=2), dict(type='amp')]
)
def test_trunk_is_frozen_until_the_epoch(tmp_path, wrapper):
    wrapper = dict(wrapper, optimizer=dict(type='AdamW', lr=1e-3))
    if wrapper.get('type') == 'amp':
        wrapper['type'] = 'CPUAmpOptimWrapper'
    watch = Watch(clones)
    model = sparse()
    run = runner(model, tmp_path, 3, [FREEZE, watch], optim_wrapper=wrapper)
    run.train()
    predictors = {n for n in watch.seen[0] if 'predictor' in n}
    frozen = moved(watch.seen[0], watch.seen[7])
    assert frozen
    assert frozen <= predictors
    assert moved(watch.seen[7], watch.seen[11]) == set(watch.seen[0])
    # Moments start with the training of a parameter.
    state = run.optim_wrapper.optimizer.state
    per_epoch = 4 // wrapper.get('accumulative_counts', 1)
    for name, param in model.named_parameters():
        epochs = 3 if name in predictors else 1
        assert state[param]['step'] == epochs * per_epoch


def test_several_parts_learn_from_the_beginning(tmp_path):
    watch = Watch(clones)
    freeze = dict(FREEZE, trained=['predictor', 'head'])
    runner(sparse(), tmp_path, 1, [freeze, watch]).train()
    learnt = moved(watch.seen[0], watch.seen[-1])
    assert any('predictor' in name for name in learnt)
    assert 'head.fc.weight' in learnt
    assert all('predictor' in name or 'head' in name for name in learnt)


def test_trunk_is_frozen_when_something_has_been_compiled(tmp_path):
    torch.compile(torch.neg, backend='eager')(torch.ones(1))
    test_trunk_is_frozen_until_the_epoch(tmp_path, {})


def test_freezing_survives_a_resume(tmp_path):
    runner(sparse(), tmp_path, 1, [FREEZE]).train()
    watch = Watch(clones)
    resumed = runner(
        sparse(),
        tmp_path,
        3,
        [FREEZE, watch],
        resume=True,
        load_from=str(tmp_path / 'epoch_1.pth'),
    )
    resumed.train()
    assert all('predictor' in n for n in moved(*watch.seen[:2]))
    assert len(moved(watch.seen[3], watch.seen[7])) == len(watch.seen[0])


def test_nothing_to_train(tmp_path):
    with pytest.raises(ValueError, match='nothing to train'):
        runner(classifier('ThinViT'), tmp_path, hooks=[FREEZE]).train()
