import gc
import signal

import pytest
import torch
from hypothesis import HealthCheck, settings
from mmengine.registry import DefaultScope, init_default_scope

# The same few examples in each run of the suite; `make fuzz` looks for others.
# However slow the machine, that is no failure.
PATIENT = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    'suite', derandomize=True, max_examples=20, **PATIENT
)
settings.register_profile('fuzz', print_blob=True, max_examples=80, **PATIENT)
settings.load_profile('suite')


def pytest_configure():
    """Let tools that tests start hear Ctrl-C.

    A shell lets what it runs in its background ignore it, and what that
    starts does so, too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Leave what has been imported out of all garbage collections.

    There is so much of it that they are rare and slow: the models of dozens
    of tests, which are in cycles of references, would wait for one.
    """
    gc.freeze()


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _scope_left_behind():
    """No test sees the scope of the one before."""
    yield
    if DefaultScope.get_current_instance() is not None:
        init_default_scope('mmengine')
