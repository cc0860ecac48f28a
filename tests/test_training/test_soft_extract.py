"""The search for how many tokens each block should keep."""

import pytest
import torch

from tests.test_training.small import classifier, images, samples
from tests.tiny_models import TRAINED

pytest.importorskip('mmpretrain')

from clustr_mm.backbones.token_pooling import TokenPoolingDeiT
from clustr_mm.tokens.trail import Trail
from clustr_mm.training.soft_extract import SoftExtract


def searching(**changes):
    return classifier('SoftExtractDeiT', type='KeepSearch', **changes)


def search(weight, steps=40):
    """The list that is found, and what training recorded."""
    torch.manual_seed(1)
    model = searching(sparsity_weight=weight).train()
    found, others = [], []
    for name, param in model.named_parameters():
        (found if 'retention' in name else others).append(param)
    optimizer = torch.optim.AdamW(
        [dict(params=others, lr=1e-3), dict(params=found, lr=2e-2)],
        weight_decay=0,
    )
    inputs, labels = images(12), samples(12)
    for _ in range(steps):
        optimizer.zero_grad()
        model.parse_losses(model.loss(inputs, labels))[0].backward()
        optimizer.step()
    return model.found()


def test_list_is_monotone_and_its_cost_responds_to_lambda():
    lists = [search(weight) for weight in (0.0, 1e-3, 1e-2, 1.0)]
    for keep in lists:
        assert len(keep) == 4
        assert keep == sorted(keep, reverse=True)
        assert keep[-1] >= 0
        assert keep[0] <= 16
        # It is what Token Pooling and the selections take.
        TokenPoolingDeiT(**TRAINED, keep=keep)
    costs = [sum(keep) for keep in lists]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] > costs[1] > costs[-1]
    assert costs[0] > 1.5 * costs[-1]


def test_tokens_are_scaled_by_rank():
    layer = SoftExtract(block=0, grid=(2, 2))
    layer.retention.data = torch.tensor([1.0, 0.5, 0.25, 0.0])
    x = torch.ones(2, 4, 3)
    column_sum = torch.tensor([[1, 4, 3, 2], [4, 3, 2, 1]])
    out = layer(x, Trail((2, 2)), column_sum.float())
    torch.testing.assert_close(
        out[..., 0], torch.tensor([[0, 1, 0.5, 0.25], [1, 0.5, 0.25, 0]])
    )


def test_untouched_it_changes_nothing():
    model = searching().eval()
    plain = classifier('ThinViT').eval()
    plain.load_state_dict(
        {k: v for k, v in model.state_dict().items() if 'reducers' not in k}
    )
    inputs = images(2)
    torch.testing.assert_close(model(inputs), plain(inputs))
    assert model.found() == [16] * 4


def test_parameters_come_back():
    """A parameter below 0 is not lost: its gradient is still there."""
    model = searching().train()
    layer = model.backbone.reducers[0]
    layer.retention.data.fill_(-3)
    losses = model.loss(images(2), samples(2))
    model.parse_losses(losses)[0].backward()
    assert layer.retention.min() == 0
    assert (layer.retention.grad != 0).all()


def test_found_is_never_more_than_before():
    model = searching()
    layers = model.backbone.reducers
    for reducer, mass in zip(layers, [9.0, 3.2, 7.0, 0.0]):
        reducer.retention.data.fill_(mass / 16)
    assert model.found() == [9, 4, 4, 0]
    for reducer in layers:
        reducer.retention.data.fill_(-1)
    assert model.found() == [0] * 4


def test_errors():
    model = searching()
    with pytest.raises(ValueError, match='set img_size'):
        model(torch.rand(1, 3, 64, 64))
    with pytest.raises(ValueError, match='negative'):
        searching(sparsity_weight=-1)
    with pytest.raises(ValueError, match='SoftExtractDeiT'):
        classifier('ThinViT', type='KeepSearch')
    both = [dict(type='SoftExtract', block=0), dict(type='TokenPool', block=1)]
    with pytest.raises(ValueError, match='SoftExtractDeiT'):
        classifier('ThinViT', type='KeepSearch', backbone=dict(reducers=both))
