"""Every tool refuses bad input in one paragraph, and harms nothing.

The quick families of cases run in full and of the others every tenth case;
those marked slow are the rest.
"""

from collections import Counter

import pytest

from tests.torch_features import CAN_EXPORT
from . import cases, data_cases, materials
from .harness import Outcome, fingerprint, judge, run_fork, run_process

QUICK = (
    *(cases.bad_configs, cases.bad_destinations, cases.wrong_options),
    data_cases.drawn_pictures,
)
LONG = (
    *(cases.bad_checkpoints, cases.wrong_cfg_options, cases.wrong_backbones),
    cases.bad_names,
    *(data_cases.bad_pictures, data_cases.odd_pictures),
    *(data_cases.bad_annotations, data_cases.bad_maps),
    data_cases.bad_folders,
)
CASES = [case for family in QUICK for case in family()]
MORE = [case for family in LONG for case in family()]
REFUSED = [case for case in CASES if not case.legal]
SAMPLE = MORE[::10]
SLOW = [case for i, case in enumerate(MORE) if i % 10]


@pytest.fixture(scope='module')
def good(tmp_path_factory):
    folder = materials.write_all(tmp_path_factory.mktemp('good') / 'm')
    before = fingerprint(folder)
    yield folder
    assert fingerprint(folder) == before, 'a tool has changed its input'


def prepared(case, folder, good):
    if case.tool == 'export_onnx.py' and not CAN_EXPORT:
        pytest.skip('exporting needs torch 2.7')
    case.spoil(folder, good)
    return [arg.replace('{m}', str(good)) for arg in case.args]


def check(case, good, folder):
    args = prepared(case, folder, good)
    before = fingerprint(folder)
    outcome = run_fork(case.tool, args, folder, **case.env)
    if case.legal:
        assert outcome.status == 0, outcome.text[-3000:]
        return
    assert not judge(outcome, case.names, case.advice), outcome.text[-3000:]
    assert fingerprint(folder) == before


@pytest.mark.parametrize('case', CASES + SAMPLE, ids=lambda case: case.id)
def test_bad_input(case, good, tmp_path):
    check(case, good, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('case', SLOW, ids=lambda case: case.id)
def test_more_bad_input(case, good, tmp_path):
    check(case, good, tmp_path)


def test_there_are_enough_cases():
    calls = Counter((case.tool, case.about) for case in CASES + MORE)
    assert max(calls.values()) == 1
    assert len([case for case in CASES + SAMPLE if not case.legal]) >= 200
    assert {tool for tool, _ in calls} >= set(cases.COMMANDS)


# A fork has what the server imported, even if its tool forgot to.
FEW = REFUSED[:: len(REFUSED) // 5]
ONE_OF_EACH = {case.tool: case for case in REFUSED}.values()


@pytest.mark.parametrize(
    'case',
    [
        *FEW,
        *(
            pytest.param(case, marks=pytest.mark.slow)
            for case in ONE_OF_EACH
            if case not in FEW
        ),
    ],
    ids=lambda case: case.id,
)
def test_forks_end_as_processes_do(case, good, tmp_path):
    """What the quick way of running a tool says is what a user sees."""
    quick, real = tmp_path / 'quick', tmp_path / 'real'
    quick.mkdir()
    real.mkdir()
    args = prepared(case, quick, good)
    outcome = run_fork(case.tool, args, quick, **case.env)
    args = prepared(case, real, good)
    found = run_process(case.tool, args, real, **case.env)
    assert found.status == outcome.status
    assert found.message == outcome.message


def test_a_tool_that_fails_is_found_out(tmp_path):
    """The judge can say no: of tracebacks, and of tools that go on."""
    script = tmp_path / 'tool.py'
    script.write_text('import sys\nsys.exit(int(sys.argv[1]) and 1 / 0)\n')
    assert 'a traceback' in judge(run_fork(script, ['1'], tmp_path))
    assert 'status 0' in judge(run_fork(script, ['0'], tmp_path))
    script.write_text(
        "raise SystemExit('error: it is bad\\n\\nvery bad indeed')\n"
    )
    assert judge(run_fork(script, [], tmp_path), ['file.py']) == [
        'more than a paragraph',
        "no 'file.py' in it",
        'nothing to do',
    ]


@pytest.mark.parametrize(
    ('message', 'faults'),
    [
        ('there is no sampling of keep=2: it must be above 0, not 2', []),
        ('keep=2 is too large; take a share of the tokens', []),
        # Words of advice that advise nothing.
        ('keep=2 must have been a mistake of yours', ['nothing to do']),
        ('keep=2 is, so to say, not what this takes', ['nothing to do']),
        ('keep=2: this name needs no use', ['nothing to do']),
        ('keep=2 cannot be built. Mend the config.', ['nothing to do']),
        # What was typed, repeated, but not what of it is wrong.
        (
            'model.backbone.keep=2 has failed: give a number',
            ["no 'keep' in it"],
        ),
        ('keep must be above 0, but is 0.25', ["no '2' in it"]),
        ('keep must be above 0', ["no '2' in it"]),
        ('2 must be above 0, you housekeeper', ["no 'keep' in it"]),
    ],
)
def test_the_judge_is_strict(message, faults):
    outcome = Outcome(1, f'error: {message}\n')
    assert judge(outcome, ('keep', '2')) == faults
