"""The sizes and costs that the papers print, next to ours.

`paper_numbers.yml` holds what the tables say. Each row knows which model it
is about; `measure` builds that model and counts. `format_rows` and `model_zoo`
show both.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from itertools import groupby
from pathlib import Path

import torch
import yaml
from torch import nn

from clustr_mm.configs import config_folder
from clustr_mm.registry import MODELS
from .cost import count_macs
from .models import build_model, read_config
from .table import format_table
from .weights_page import published_weights

_NUMBERS = Path(__file__).with_name('paper_numbers.yml')
_ROUNDING = dict(nearest=ROUND_HALF_EVEN, down=ROUND_FLOOR)


@dataclass(frozen=True)
class Printed:
    """A number as printed: its digits tell how much was rounded.

    Attributes:
        number: The number.
        rounding: How the paper came to its last digit.
        tolerance: Relative error, where it is worse than rounding.
    """

    number: Decimal
    rounding: str = ROUND_HALF_EVEN
    tolerance: float = 0.0

    def agrees(self, found: float) -> bool:
        rounded = Decimal(found).quantize(self.number, self.rounding)
        return rounded == self.number or math.isclose(
            found, self.number, rel_tol=self.tolerance
        )


@dataclass(frozen=True)
class Row:
    """A row of a paper's table.

    Attributes:
        paper: Which paper.
        name: Which model.
        params: Millions of parameters, if they are printed.
        macs: Billions of multiply-accumulates, if they are printed.
        backbone: Settings of the backbone; None if the config has a model
            that is more than a backbone and a linear head.
        num_classes: Classes of its linear head; 0 for no head.
        token_head: Whether the head sees every token, not their mean.
        config: Name of the config file, if there is one.
        accuracy: What the paper reached, if it is known; nothing of ours.
    """

    paper: str
    name: str
    params: Printed | None = None
    macs: Printed | None = None
    backbone: dict | None = None
    num_classes: int = 1000
    token_head: bool = False
    config: str | None = None
    accuracy: str | None = None

    @property
    def size(self) -> int:
        """Side of the image."""
        return (self.backbone or {}).get('img_size', 224)

    def agrees(self, found: 'Measured') -> bool:
        """Whether our numbers are the paper's as far as it prints them."""
        return all(
            printed is None or printed.agrees(number)
            for printed, number in (
                (self.params, found.params),
                (self.macs, found.macs),
            )
        )


@dataclass(frozen=True)
class Measured:
    """What was counted for a row, in the same units."""

    params: float
    macs: float | None


def measure(row: Row) -> Measured:
    """Build the model of a row and count."""
    torch.manual_seed(0)
    if row.backbone is None:
        model = build_model(read_config(str(config_folder() / row.config)))
    else:
        model = _Classifier(row.backbone, row.num_classes, row.token_head)
    params = sum(param.numel() for param in model.parameters()) / 1e6
    if row.macs is None:
        return Measured(params, None)
    cost = count_macs(model, torch.randn(1, 3, row.size, row.size))
    return Measured(params, cost.paper_macs / 1e9)


class _Classifier(nn.Module):
    """A backbone and a linear head on its last output."""

    def __init__(self, backbone: dict, num_classes: int, token_head: bool):
        super().__init__()
        self.backbone = MODELS.build(backbone).eval()
        self.token_head = token_head
        self.head = nn.Identity()
        if num_classes:
            with torch.no_grad():
                width = self(torch.zeros(1, 3, 64, 64)).shape[-1]
            self.head = nn.Linear(width, num_classes)

    def forward(self, img: torch.Tensor) -> torch.Tensor:
        x = self.backbone(img)[-1]
        if x.dim() == 4:
            x = x.mean((2, 3))
        elif x.dim() == 3 and not self.token_head:
            x = x[:, 0]
        return self.head(x)


def rows() -> Iterator[Row]:
    """All rows that a count can check."""
    for paper in _papers():
        for group in paper['groups']:
            common = {k: v for k, v in group.items() if k != 'rows'}
            for row in group['rows']:
                yield _row(paper['paper'], {**common, **row}, group)


def _papers() -> list[dict]:
    return yaml.safe_load(_NUMBERS.read_text())


def _row(paper: str, found: dict, group: dict) -> Row:
    backbone = {**group.get('backbone', {}), **found.pop('backbone', {})}
    rounding = _ROUNDING[found.pop('rounding', 'nearest')]
    for key in 'params', 'macs':
        tolerance = found.pop(f'{key}_tolerance', 0.0)
        if key in found:
            number = Decimal(found[key])
            found[key] = Printed(number, rounding, tolerance)
    return Row(paper, backbone=backbone or None, **found)


def format_rows(measured: Sequence[tuple[Row, Measured]]) -> str:
    """A table a paper, as plain text."""
    tables = []
    for paper, pairs in _by_paper(measured):
        cells = [
            [row.name, *_numbers(row, found), _verdict(row, found)]
            for row, found in pairs
        ]
        head = [paper, 'params M', 'ours', 'MACs G', 'ours', '']
        tables.append(format_table(head, cells))
    return '\n\n'.join(tables)


def as_dict(row: Row, found: Measured) -> dict:
    """The same of one row, for a JSON file."""

    def both(printed: Printed | None, number: float | None) -> dict:
        paper = None if printed is None else float(printed.number)
        return dict(paper=paper, ours=number)

    return dict(
        paper=row.paper,
        model=row.name,
        config=row.config,
        params_m=both(row.params, found.params),
        macs_g=both(row.macs, found.macs),
        accuracy_in_paper=row.accuracy,
        agrees=row.agrees(found),
    )


def model_zoo(measured: Sequence[tuple[Row, Measured]]) -> str:
    """The page of the documentation that lists all rows."""
    notes = {paper['paper']: paper['note'] for paper in _papers()}
    parts = [_ZOO_HEAD]
    for paper, pairs in _by_paper(measured):
        parts.append(f'\n## {paper}\n\n{notes[paper]}\n\n{_ZOO_TABLE}')
        for row, found in pairs:
            cells = [row.name, *_numbers(row, found), row.accuracy]
            link = row.config and (
                f'[`{Path(row.config).stem}`](../configs/{row.config})'
            )
            line = ' | '.join(cell or '' for cell in [*cells, link])
            parts.append(f'| {line} |\n')
    return ''.join([*parts, published_weights()])


def _by_paper(measured: Sequence[tuple[Row, Measured]]):
    return groupby(measured, key=lambda pair: pair[0].paper)


def _numbers(row: Row, found: Measured) -> list[str | None]:
    """Parameters and operations, each the paper's and ours."""
    return [
        row.params and str(row.params.number),
        f'{found.params:.3f}',
        row.macs and str(row.macs.number),
        None if found.macs is None else f'{found.macs:.3f}',
    ]


def _verdict(row: Row, found: Measured) -> str:
    return 'agrees' if row.agrees(found) else 'OFF'


_ZOO_HEAD = """\
# Model zoo

<!-- Written by tools/paper_tables.py --write-docs. -->

Sizes and costs as the papers print them, and as counted on the models that
this package builds. Parameters are in millions; multiply-accumulates (MACs)
are in billions, for an image of 224 x 224 unless the name says otherwise, and
count what the paper counts. `python tools/paper_tables.py` counts again and
fails if a number is not the paper's.

**Accuracies are the papers' own.** Nothing was trained here on the data sets
that they are about. What their authors have published
[can be loaded by name](#published-weights).

A config is linked where there is one with just this model.
"""
_ZOO_TABLE = """\
| model | params, paper | params, ours | MACs, paper | MACs, ours \
| accuracy in the paper | config |
|---|---:|---:|---:|---:|---|---|
"""
