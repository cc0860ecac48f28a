"""The ratio loss in models that know nothing of it."""

import pytest
from mmengine.hooks import Hook
from mmengine.registry import init_default_scope

from tests.test_training.small import classifier, runner

pytest.importorskip('mmpretrain')


@pytest.fixture(autouse=True)
def _scope():
    yield
    init_default_scope('mmengine')


class Watch(Hook):
    """Keep what the model's losses were."""

    def __init__(self):
        self.seen = []

    def after_train_iter(self, runner, batch_idx, data_batch, outputs):
        self.seen.append({k: v.item() for k, v in outputs.items()})


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
    assert model.loss == type(model).loss.__get__(model)
    assert not model.backbone.reducers[-1]._forward_hooks


def test_needs_a_dynamic_vit(tmp_path):
    with pytest.raises(ValueError, match='needs a DynamicViT'):
        runner(
            classifier('EViT'), tmp_path, hooks=[dict(type='RatioLoss')]
        ).train()
