"""The sizes and costs that the papers print, next to ours.

`paper_numbers.yml` holds what the tables say. Each row knows which model it
is about; `measure` builds that model and counts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from pathlib import Path

import torch
import yaml
from torch import nn

from clustr_mm.registry import MODELS
from .cost import count_macs
from .models import build_model, read_config

_NUMBERS = Path(__file__).with_name('paper_numbers.yml')
_CONFIGS = Path(__file__).parents[2] / 'configs'


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
        backbone: Settings of the backbone.
        num_classes: Classes of its linear head; 0 for no head.
        token_head: Whether the head sees every token, not their mean.
        size: Side of the image.
        config: Name of the config file, for models that are more than a
            backbone and a linear head.
    """

    paper: str
    name: str
    params: Printed | None = None
    macs: Printed | None = None
    backbone: dict | None = None
    num_classes: int = 1000
    token_head: bool = False
    size: int = 224
    config: str | None = None

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
    if row.config is not None:
        model = build_model(read_config(str(_CONFIGS / row.config)))
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
    # As text: the digits tell how much was rounded.
    numbers = yaml.load(_NUMBERS.read_text(), yaml.BaseLoader)
    for paper, make in _ROWS.items():
        yield from make(numbers[paper])


def _clustr(numbers: dict) -> Iterator[Row]:
    def row(name: str, found: dict, config: str | None = None, **backbone):
        # How the paper counts is not quite known. Of the base model it says
        # 40.2 M parameters in its table and 40.3 M in its text.
        macs = found.get('flops')
        return Row(
            'ClusTR',
            name,
            params=Printed(Decimal(found['params']), tolerance=0.002),
            macs=macs and Printed(Decimal(macs), tolerance=0.035),
            backbone=dict(type='ClusTR', **backbone),
            config=config,
        )

    for found in numbers['backbones']:
        yield row(found['name'], found, arch=found['name'])
    for found in numbers['single_scale_tiny']:
        reduction = found['reduction']
        if reduction == 'multi':
            yield row('tiny, multi-scale', found, arch='tiny')
            continue
        reduction = [[int(number)] for [number] in reduction]
        name = f'tiny, {"/".join(str(r) for [r] in reduction)}'
        yield row(name, found, arch='tiny', reduction=reduction)
    for found in numbers['sparse_attention_tiny']:
        kind = found['attention']
        more = dict(reduction=(64, 16, 4, 1)) if kind == 'cluster' else {}
        name = f'tiny, {kind}'
        yield row(name, found, arch='tiny', attention=kind, **more)
    for found in numbers['downstream_small']:
        if 'params' in found:
            task, data = found['task'], found['dataset']
            config = f'clustr/{task}_clustr_s_{data}.py'
            yield row(f'small, {task}', found, config)


def _hvt(numbers: dict) -> Iterator[Row]:
    def row(name: str, found: dict, classes: int, arch: str, **more):
        return Row(
            'HVT',
            name,
            params=Printed(Decimal(found['params'])),
            macs=Printed(Decimal(found['flops'])),
            backbone=dict(type='HVT', arch=arch, **more),
            num_classes=classes,
            size=more.get('img_size', 224),
        )

    for found in numbers['imagenet']:
        arch = found['name'].lower().removeprefix('hvt-').replace('hvt-', '')
        yield row(found['name'], found, 1000, arch)
    tables = numbers['cifar100']
    for found in tables['pooling']:
        op = found['op']
        yield row(f'{op} pooling', found, 100, 's-4', op=op)
    # The arch 's-4' has 12 blocks, 6 heads and patches of 16 pixels.
    for table, usual in ('depth', 12), ('heads', 6), ('patch', 16):
        for found in tables[table]:
            value = int(found[table])
            arch = 's-4' if value == usual else f's-4-{table}{value}'
            yield row(f'{table} {value}', found, 100, arch)
    for found in tables['resolution']:
        size = int(found['res'])
        name = f'resolution {size}'
        yield row(name, found, 100, 's-4', img_size=size)
    for found in tables['pooling_2d']:
        yield row(found['name'], found, 100, 's-2-2d')


def _token_pooling(numbers: dict) -> Iterator[Row]:
    methods = dict(flops='significance', medoids='kmedoids', means='kmeans')
    for trunk, levels in numbers.items():
        arch = 'deit-small' if trunk == 'deit-s' else trunk
        for found in levels:
            for column, method in methods.items():
                if column not in found:
                    continue
                # The paper's clustering also costs something in blocks that
                # keep all tokens, where ours does nothing.
                tolerance = 0.0 if column == 'flops' else 0.06
                yield Row(
                    'Token Pooling',
                    f'{trunk}, level {found["level"]}, {method}',
                    macs=Printed(Decimal(found[column]), tolerance=tolerance),
                    backbone=dict(
                        type='TokenPoolingDeiT',
                        arch=arch,
                        keep=int(found['level']),
                        method=method,
                    ),
                )


def _dynamicvit(numbers: dict) -> Iterator[Row]:
    def row(name: str, macs: str, rounding: str = ROUND_FLOOR, **more):
        printed = Printed(Decimal(macs), rounding)
        return Row('DynamicViT', name, macs=printed, **more)

    trunks = {
        'deit-s': dict(type='DynamicViT', arch='deit-small'),
        'lvvit-s': dict(type='DynamicLVViT', arch='lvvit-small'),
    }
    # The dense models' costs were printed by their own papers, which round;
    # that of LV-ViT with its head on every token.
    for name, backbone, token_head in (
        ('deit-s', dict(type='ThinViT', arch='deit-small'), False),
        ('lvvit-s', dict(type='LVViT', arch='lvvit-small'), True),
    ):
        yield row(
            name,
            numbers[name]['base']['flops'],
            ROUND_HALF_EVEN,
            backbone=backbone,
            token_head=token_head,
        )
    for name, trunk in trunks.items():
        for rate, macs in numbers[name]['keep'].items():
            backbone = dict(trunk, keep=float(rate))
            yield row(f'{name}/{rate}', macs, backbone=backbone)
    for name, found in numbers['stages'].items():
        keep = [float(share) for share in found['keep']]
        backbone = dict(trunks['deit-s'], keep=keep)
        yield row(f'{name} stage', found['flops'], backbone=backbone)


def _evit(numbers: dict) -> Iterator[Row]:
    for found in numbers['small_patch14']:
        if 'keep' in found:
            yield Row(
                'EViT',
                found['name'],
                params=Printed(Decimal(found['params'])),
                # It does not say what was counted.
                macs=Printed(Decimal(found['macs_m']) / 1000, tolerance=0.003),
                backbone=dict(
                    type='EViT',
                    arch='small-14',
                    keep=float(found['keep']),
                    fuse=False,
                ),
                num_classes=0,
            )
    for found in numbers['deit_small_patch16']:
        keep = float(found['keep'])
        yield Row(
            'EViT',
            f'deit-s/{keep}',
            macs=Printed(Decimal(found['flops'])),
            backbone=dict(type='EViT', keep=keep),
        )


_ROWS = dict(
    clustr=_clustr,
    hvt=_hvt,
    token_pooling=_token_pooling,
    dynamicvit=_dynamicvit,
    evit=_evit,
)
