import importlib.util
import json
import re
import sys
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal

import pytest
import torch
from mmengine.config import Config

import clustr_mm.backbones  # noqa: F401
from clustr_mm import configs
from clustr_mm.analysis.cost import count_macs
from clustr_mm.analysis.paper import (
    Printed,
    config_folder,
    measure,
    model_zoo,
    rows,
)
from clustr_mm.analysis.weights_page import published_weights
from clustr_mm.errors import UserError
from clustr_mm.registry import MODELS
from tests.runs import ROOT, TOOLS, run_tool


@pytest.fixture
def paper_tables(monkeypatch):
    """The tool as a module."""
    monkeypatch.syspath_prepend(TOOLS)
    spec = importlib.util.spec_from_file_location(
        'paper_tables', TOOLS / 'paper_tables.py'
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_slow(row):
    return row.paper == 'Token Pooling' and 'deit-s, level 3' not in row.name


@pytest.mark.parametrize(
    'row',
    [
        pytest.param(
            row,
            id=f'{row.paper}-{row.name}',
            marks=[pytest.mark.slow] if is_slow(row) else [],
        )
        for row in rows()
    ],
)
def test_row(row):
    found = measure(row)
    assert row.agrees(found), f'{found} where {row} is printed'


def test_all_rows_are_there():
    papers = [row.paper for row in rows()]
    counts = {paper: papers.count(paper) for paper in papers}
    assert counts == {
        'ClusTR': 13,
        'HVT': 31,
        'Token Pooling': 3 * 8 * 2 + 8,
        'DynamicViT': 15,
        'EViT': 8,
    }


@pytest.mark.parametrize(
    ('printed', 'fits', 'fails'),
    [
        (Printed(Decimal('4.57')), [4.566, 4.574], [4.564, 4.576]),
        (Printed(Decimal('2.9'), ROUND_FLOOR), [2.9, 2.99], [2.89, 3.0]),
        (Printed(Decimal('10'), tolerance=0.1), [9.1, 11], [8.9, 11.2]),
        (Printed(Decimal('3.00')), [2.996], [2.99, 3.01]),
    ],
)
def test_printed(printed, fits, fails):
    assert all(map(printed.agrees, fits))
    assert not any(map(printed.agrees, fails))


PAGE = (ROOT / 'docs/model_zoo.md').read_text()


def test_page_lists_all_rows():
    """With the papers' numbers; whether ours still hold is for a slow test."""
    assert PAGE.endswith(published_weights())
    lines = iter(PAGE.removesuffix(published_weights()).splitlines())
    for row in rows():
        printed = [
            number and str(number.number) for number in (row.params, row.macs)
        ]
        fields = next(
            line for line in lines if line.startswith(f'| {row.name} |')
        )
        _, name, params, our_params, macs, our_macs, accuracy, config, _ = (
            field.strip() for field in fields.split('|')
        )
        assert [params or None, macs or None] == printed
        assert accuracy == (row.accuracy or '')
        assert float(our_params)
        assert bool(our_macs) == (row.macs is not None)
        assert (row.config or '') in config
    assert not [line for line in lines if line.startswith('|')]


def test_links_of_page():
    links = re.findall(r'\]\((\.\.[^)]+)\)', PAGE)
    assert len(links) == sum(row.config is not None for row in rows())
    assert not [p for p in links if not (ROOT / 'docs' / p).is_file()]


@pytest.mark.slow
def test_page_is_what_the_tool_writes():
    assert model_zoo([(row, measure(row)) for row in rows()]) == PAGE


def linked_rows():
    """Rows about a backbone that a config has as well."""
    return [row for row in rows() if row.config and row.backbone]


@pytest.mark.slow
@pytest.mark.parametrize(
    'row',
    [pytest.param(row, id=f'{row.paper}-{row.name}') for row in linked_rows()],
)
def test_config_has_the_model(row):
    cfg = Config.fromfile(config_folder() / row.config)
    settings = [dict(row.backbone), dict(cfg.model.backbone, init_cfg=None)]
    costs = []
    for backbone in settings:
        torch.manual_seed(0)
        model = MODELS.build(backbone)
        cost = count_macs(model, torch.randn(1, 3, row.size, row.size))
        costs.append((cost.params, cost.macs))
    assert costs[0] == costs[1]


def test_tool_compares(tmp_path):
    out = run_tool('paper_tables.py', '--only', 'hvt-s-1', cwd=tmp_path)
    [line] = [line for line in out.splitlines() if line.startswith('HVT-S-1')]
    assert re.split(' +', line)[1:] == [
        '22.09',
        '22.087',
        '2.40',
        '2.402',
        'agrees',
    ]


def test_tool_fails_if_a_number_is_off(paper_tables, monkeypatch, capsys):
    [row] = [row for row in rows() if row.name == 'HVT-S-4']
    wrong = replace(row, params=Printed(Decimal('22.13')))
    monkeypatch.setattr(paper_tables, 'rows', lambda: iter([row, wrong]))
    monkeypatch.setattr(sys, 'argv', ['paper_tables.py', '--json'])
    with pytest.raises(SystemExit) as end:
        paper_tables.main()
    assert end.value.code == 1
    found = json.loads(capsys.readouterr().out)
    assert [one['agrees'] for one in found] == [True, False]
    assert found[1]['params_m']['paper'] == 22.13


def test_tool_prints_what_was_done_when_interrupted(
    paper_tables, monkeypatch, capsys
):
    done = []

    def measure_one(row):
        if done:
            raise KeyboardInterrupt
        done.append(row)
        return measure(row)

    monkeypatch.setattr(paper_tables, 'measure', measure_one)
    monkeypatch.setattr(sys, 'argv', ['paper_tables.py', '--only', 'HVT-S'])
    with pytest.raises(SystemExit) as end:
        paper_tables.main()
    assert end.value.code == 130
    out, err = capsys.readouterr()
    assert done[0].name in out
    assert 'these are 1 of 6 rows' in err


def test_tool_refuses(paper_tables, monkeypatch, capsys):
    with pytest.raises(UserError, match="'resnet' fits no row of the papers"):
        paper_tables.chosen_rows('resnet')
    args = ['paper_tables.py', '--only', 'HVT', '--write-docs']
    monkeypatch.setattr(sys, 'argv', args)
    with pytest.raises(SystemExit):
        paper_tables.main()
    assert 'leave out --only' in capsys.readouterr().err


def test_configs_of_an_installed_package(monkeypatch, tmp_path):
    package = tmp_path / 'site-packages/clustr_mm'
    monkeypatch.setattr(configs, '_PACKAGE', package)
    with pytest.raises(UserError, match='has no configs'):
        config_folder()
    # That one may be anybody's.
    (package.parent / 'configs').mkdir(parents=True)
    (package / '.mim/configs').mkdir(parents=True)
    assert config_folder() == package / '.mim/configs'
