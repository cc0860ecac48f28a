"""Weights into a model: those of its backbone must all be there."""

import pytest
import torch
from torch import nn

from clustr_mm.backbones.evit import EViT
from clustr_mm.backbones.hvt import HVT
from clustr_mm.checkpoints.load import load_weights
from clustr_mm.errors import UserError
from tests.tiny_models import ARCH, SMALL


class Model(nn.Module):
    def __init__(self, backbone=EViT, **changes):
        super().__init__()
        self.backbone = backbone(**{**SMALL, **changes})


@pytest.fixture
def path(tmp_path):
    file = tmp_path / 'weights.pth'
    torch.save(dict(state_dict=Model().state_dict()), file)
    return str(file)


def test_a_head_may_be_missing(path):
    model = Model()
    model.head = nn.Linear(2, 2)
    load_weights(model, path)
    weights = torch.load(path, weights_only=True)['state_dict']
    for name, value in model.backbone.state_dict().items():
        assert torch.equal(value, weights[f'backbone.{name}'])
    with pytest.raises(UserError, match='lacks 2 weights .* head.weight'):
        load_weights(model, path, prefix='')


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        (dict(arch=dict(ARCH, embed_dims=96)), 'another model.*size mismatch'),
        (dict(backbone=HVT), r'lacks 1 weights .* backbone.reducers\.0\.'),
    ],
)
def test_weights_of_another_model(changes, message, path):
    with pytest.raises(UserError, match=message):
        load_weights(Model(**changes), path)


def test_files_that_are_none(path, tmp_path):
    with pytest.raises(UserError, match='there is no'):
        load_weights(Model(), tmp_path / 'missing.pth')
    with open(path, 'rb+') as file:
        file.truncate(1000)
    with pytest.raises(UserError, match='only a part of one'):
        load_weights(Model(), path)
