"""Every tool refuses bad input in one paragraph, and harms nothing.

The quick families of cases run in full and of the others every tenth case;
those marked slow are the rest.
"""

from collections import Counter

import pytest

from tests.abilities import CAN_EXPORT
from . import cases, data_cases, materials
from .harness import ForkServer, fingerprint, judge, run_process

QUICK = (
    *(cases.bad_configs, cases.bad_destinations, cases.wrong_options),
    data_cases.drawn_pictures,
)
LONG = (
    *(cases.bad_checkpoints, cases.wrong_cfg_options, cases.wrong_backbones),
    *(data_cases.bad_pictures, data_cases.odd_pictures),
    *(data_cases.bad_annotations, data_cases.bad_maps),
    data_cases.bad_folders,
)
CASES = [case for family in QUICK for case in family()]
MORE = [case for family in LONG for case in family()]
SAMPLE = MORE[::10]
SLOW = [case for i, case in enumerate(MORE) if i % 10]


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    folder = materials.write_all(tmp_path_factory.mktemp('good') / 'm')
    before = fingerprint(folder)
    yield folder
    assert fingerprint(folder) == before, 'a tool has changed its input'


@pytest.fixture(scope='module')
def tools():
    server = ForkServer()
    yield server
    server.close()


def prepared(case, folder, good):
    if case.tool == 'export_onnx.py' and not CAN_EXPORT:
        pytest.skip('exporting needs torch 2.7')
    case.spoil(folder, good)
    return [arg.replace('{m}', str(good)) for arg in case.args]


def check(case, tools, good, folder):
    args = prepared(case, folder, good)
    before = fingerprint(folder)
    outcome = tools.run(case.tool, args, folder)
    if case.legal:
        assert outcome.status == 0, outcome.text[-3000:]
        return
    assert not judge(outcome, case.names), outcome.text[-3000:]
    assert fingerprint(folder) == before


@pytest.mark.parametrize('case', CASES + SAMPLE, ids=lambda case: case.id)
def test_bad_input(case, tools, good, tmp_path):
    check(case, tools, good, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('case', SLOW, ids=lambda case: case.id)
def test_more_bad_input(case, tools, good, tmp_path):
    check(case, tools, good, tmp_path)


def test_there_are_enough_cases():
    calls = Counter((case.tool, case.about) for case in CASES + MORE)
    assert max(calls.values()) == 1
    assert len([case for case in CASES + SAMPLE if not case.legal]) >= 200
    assert {tool for tool, _ in calls} >= set(cases.COMMANDS)


@pytest.mark.parametrize('number', range(0, len(CASES), len(CASES) // 5))
def test_forks_end_as_processes_do(number, tools, good, tmp_path):
    """What the quick way of running a tool says is what a user sees."""
    case = CASES[number]
    quick, real = tmp_path / 'quick', tmp_path / 'real'
    quick.mkdir()
    real.mkdir()
    outcome = tools.run(case.tool, prepared(case, quick, good), quick)
    found = run_process(case.tool, prepared(case, real, good), real)
    assert found.status == outcome.status
    assert found.message == outcome.message


def test_a_tool_that_fails_is_found_out(tools, tmp_path):
    """The judge can say no: of tracebacks, and of tools that go on."""
    script = tmp_path / 'tool.py'
    script.write_text('import sys\nsys.exit(int(sys.argv[1]) and 1 / 0)\n')
    assert 'a traceback' in judge(tools.run(script, ['1'], tmp_path))
    assert 'status 0' in judge(tools.run(script, ['0'], tmp_path))
    script.write_text(
        "raise SystemExit('error: it is bad\\n\\nvery bad indeed')\n"
    )
    assert judge(tools.run(script, [], tmp_path), ['file.py']) == [
        'more than a paragraph',
        "no 'file.py' in it",
        'nothing to do',
    ]
