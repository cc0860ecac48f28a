"""What is said of parts that cannot be built, whoever wrote them."""

import inspect

import pytest
import torch
from mmengine.optim import LinearLR
from mmengine.registry import OPTIMIZERS, PARAM_SCHEDULERS
from mmengine.runner import Runner

from clustr_mm.errors import UserError, building
from clustr_mm.runs.runner import PARTS

PARAMS = [torch.nn.Parameter(torch.zeros(1))]
SGD = torch.optim.SGD(PARAMS, lr=0.1)


@pytest.mark.parametrize(
    ('registry', 'options', 'said'),
    [
        (
            OPTIMIZERS,
            dict(type='AdamW', params=PARAMS, weight_decy=1),
            'AdamW has no option weight_decy: did you mean weight_decay?',
        ),
        # It hands on what it does not know.
        (
            PARAM_SCHEDULERS,
            dict(
                type='LinearLR',
                optimizer=SGD,
                typo=1,
            ),
            'LinearLR has no option typo: choose from begin, by_epoch, end',
        ),
    ],
)
def test_options_of_other_constructors(registry, options, said):
    with pytest.raises(UserError) as error, building('it'):
        registry.build(options)
    assert said in str(error.value)


def test_choice_is_what_they_take():
    with pytest.raises(UserError) as error, building('it'):
        LinearLR(SGD, start_facto=0.5, typo=1)
    assert 'did you mean start_factor?' in str(error.value)


def test_errors_of_their_own_are_repeated():
    with pytest.raises(UserError) as error, building('it', 'Wait.'):
        OPTIMIZERS.build(dict(type='AdamW', params=PARAMS, lr=-1))
    words = 'ValueError: Invalid learning rate: -1 (torch/optim/adam'
    assert words in str(error.value)
    assert str(error.value).endswith(' Wait.')


def test_parts_of_a_runner():
    """Each is named as a config does, or in words."""
    assert all(callable(getattr(Runner, name)) for name in PARTS)
    for names in PARTS.values():
        for name in names.split(' or '):
            known = name in inspect.signature(Runner).parameters
            assert known or name.startswith('the '), name
