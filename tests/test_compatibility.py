"""How much of a model a checkpoint must have, for what it is used for."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.runner import BaseLoop
from torch import nn

from clustr_mm.checkpoints import published
from clustr_mm.checkpoints.compatibility import (
    CheckCompatibility,
    CheckedPretrainedInit,
)
from clustr_mm.errors import UserError

NAMES = ['0.weight', '0.bias', '1.weight', '1.bias']


def model():
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))


def load(use, tensors):
    """What the hook says of a checkpoint of these tensors."""
    runner = SimpleNamespace(
        _load_from='file.pth',
        _resume=use == 'resume',
        _train_loop=None if use == 'test' else object.__new__(Loop),
        cfg=SimpleNamespace(filename='config.py'),
        model=model(),
    )
    state = dict(meta={}, optimizer={}, message_hub={}, state_dict=tensors)
    CheckCompatibility().after_load_checkpoint(runner, state)


class Loop(BaseLoop):
    def run(self):
        """Never called: a loop tells that the run is a training."""


@pytest.mark.parametrize(
    ('use', 'enough'), [('start', 1), ('test', 3), ('resume', 4)]
)
def test_how_many_tensors_are_enough(use, enough):
    """One to start from, more than half to test, all to go on."""
    tensors = model().state_dict()
    load(use, {name: tensors[name] for name in NAMES[:enough]})
    # As saved by a distributed run.
    load(use, {f'module.{name}': tensors[name] for name in NAMES[:enough]})
    few = {name: tensors[name] for name in NAMES[: enough - 1]}
    with pytest.raises(UserError, match=f'of the 4 .* has {enough - 1}'):
        load(use, few)
    # The right names of another shape are of another model.
    other = {name: torch.zeros(7) for name in NAMES[enough - 1 :]}
    with pytest.raises(UserError, match=f'of the 4 .* has {enough - 1}'):
        load(use, {**few, **other})


def test_weights_alone_are_no_run_to_go_on_with(tmp_path):
    runner = SimpleNamespace(_load_from='file.pth', _resume=True)
    with pytest.raises(UserError, match='holds no state of a run'):
        CheckCompatibility().after_load_checkpoint(
            runner, model().state_dict()
        )


@pytest.mark.parametrize('prefix', [None, 'backbone', 'backbone.'])
def test_parts_start_from_what_is_below_a_prefix(prefix, tmp_path):
    file, part = str(tmp_path / 'file.pth'), model()
    before = '' if prefix is None else 'backbone.'
    tensors = {before + k: v + 1 for k, v in part.state_dict().items()}
    torch.save(dict(state_dict=tensors), file)
    expected = part[0].weight + 1
    CheckedPretrainedInit(checkpoint=file, prefix=prefix)(part)
    assert torch.equal(part[0].weight, expected)
    torch.save(dict(state_dict={'neck.0.weight': torch.ones(3, 2)}), file)
    with pytest.raises(UserError, match='none of the weights of the Sequent'):
        CheckedPretrainedInit(checkpoint=file, prefix=prefix)(part)
    torch.save([1, 2], file)
    with pytest.raises(UserError, match='holds no weights'):
        CheckedPretrainedInit(checkpoint=file, prefix=prefix)(part)


def test_parts_start_from_published_weights(monkeypatch):
    part = model()
    tensors = {name: value + 1 for name, value in part.state_dict().items()}
    asked = {'published:small': dict(state_dict=tensors)}
    monkeypatch.setattr(published, 'load', asked.__getitem__)
    CheckedPretrainedInit(checkpoint='published:small')(part)
    assert torch.equal(part[0].weight, tensors['0.weight'])
