import pytest
import torch
from mmengine.registry import DefaultScope, init_default_scope


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _scope_left_behind():
    """No test sees the scope of the one before."""
    yield
    if DefaultScope.get_current_instance() is not None:
        init_default_scope('mmengine')
