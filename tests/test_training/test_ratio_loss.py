"""The ratio loss in models that know nothing of it."""

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.registry import init_default_scope

from clustr_mm.training import RatioLoss
from tests.test_training.small import classifier, images, runner, samples

pytest.importorskip('mmpretrain')


@pytest.fixture(autouse=True)
def _scope():
    yield
    init_default_scope('mmengine')


class Watch(Hook):
    """Keep what the model's losses were, and that its methods are its own."""

    def __init__(self):
        self.seen = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.seen.append({k: v.item() for k, v in outputs.items()})
        assert not {'loss', 'forward'} & set(vars(runner.model))


def test_any_model_is_held_to_its_shares(tmp_path):
    model = classifier('DynamicViT', backbone=dict(keep=[0.75, 0.25]))
    watch = Watch()
    hook = dict(type='RatioLoss', weight=3.0)
    runner(model, tmp_path, epochs=1, hooks=[hook, watch]).train()
    assert len(watch.seen) == 4
    for seen in watch.seen:
        first, second = seen['kept_1'] - 0.75, seen['kept_2'] - 0.25
        expected = 3 * (first**2 + second**2) / 2
        assert seen['loss_ratio'] == pytest.approx(expected, rel=1e-4)
        assert seen['loss'] > seen['loss_ratio']
    # The loss of the task alone is left.
    model.train()
    losses = model(images(2), samples(2), mode='loss')
    assert set(losses) == {'loss'}
    assert not any(part._forward_hooks for part in model.modules())


def test_predictions_between_are_as_they_were(tmp_path):
    """A hook that adds losses looks at nothing else."""
    model = classifier('DynamicViT', backbone=dict(keep=[0.75, 0.25]))
    small = runner(model, tmp_path)
    hook = RatioLoss()
    hook.before_train(small)
    model.eval()
    with torch.no_grad():
        found = model(images(2), samples(2), mode='predict')
        scores = model(images(2), mode='tensor')
    assert [sample.pred_score.shape for sample in found] == [(3,), (3,)]
    assert scores.shape == (2, 3)
    hook.after_train(small)


def test_needs_a_dynamic_vit(tmp_path):
    with pytest.raises(ValueError, match='needs a DynamicViT'):
        runner(
            classifier('EViT'), tmp_path, hooks=[dict(type='RatioLoss')]
        ).train()
