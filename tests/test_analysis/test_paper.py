from decimal import ROUND_FLOOR, Decimal

import pytest

import clustr_mm.backbones  # noqa: F401
from clustr_mm.analysis.paper import Printed, measure, rows


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
        'HVT': 26,
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
