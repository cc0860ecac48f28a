import gc
import os
import signal

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from mmengine.registry import DefaultScope, init_default_scope

# The same few examples in each run of the suite; `make fuzz` looks for others.
# However slow the machine, that is no failure.
PATIENT = dict(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile(
    'suite', derandomize=True, max_examples=20, **PATIENT
)
# What is to fail anyway shall do so quickly.
settings.register_profile(
    'mutants',
    parent=settings.get_profile('suite'),
    phases=[Phase.explicit, Phase.generate],
    report_multiple_bugs=False,
)
settings.register_profile('fuzz', print_blob=True, max_examples=80, **PATIENT)
settings.load_profile('suite')


# Nothing is downloaded: what configs start from is made up, here and in all
# that the tests start.
os.environ['CLUSTR_MM_WEIGHTS'] = 'random'


def pytest_configure():
    """Let tools that tests start hear Ctrl-C.

    A shell lets what it runs in its background ignore it, and what that
    starts does so, too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Skip what only a GPU can tell where there is none, and say so."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker('gpu'):
                item.add_marker(pytest.mark.skip(reason='needs a GPU'))


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
