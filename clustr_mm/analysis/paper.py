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

from clustr_mm.errors import UserError
from clustr_mm.registry import MODELS
from .cost import count_macs
from .models import build_model, read_config
from .table import format_table

_NUMBERS = Path(__file__).with_name('paper_numbers.yml')
_PACKAGE = Path(__file__).parents[1]


def config_folder() -> Path:
    """The configs: in an installed package its own, or the checkout's."""
    folders = [_PACKAGE / '.mim/configs', _PACKAGE.parent / 'configs']
    for folder in folders:
        if folder.is_dir():
            return folder
    raise UserError(
        f'clustr_mm has no configs, neither {folders[0]} nor {folders[1]}: '
        'install it again, or run in a checkout'
    )


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
        size: Side of the image.
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
    size: int = 224
    config: str | None = None
    accuracy: str | None = None

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
    # As text: the digits tell how much was rounded.
    numbers = yaml.load(_NUMBERS.read_text(), yaml.BaseLoader)
    for paper, make in _ROWS.items():
        yield from make(numbers[paper])


_METRICS = dict(
    top1='top-1',
    miou='mIoU',
    ade_miou='ADE20K mIoU',
    box_ap='box AP',
    mask_ap='mask AP',
)


def _accuracy(found: dict) -> str | None:
    """What a row of the numbers says about accuracy, with its units."""
    texts = [
        f'{metric} {found[key]}'
        for key, metric in _METRICS.items()
        if key in found
    ]
    return ', '.join(texts) or None


def _clustr(numbers: dict) -> Iterator[Row]:
    def row(name: str, found: dict, config: str, **backbone):
        # How the paper counts is not quite known. Of the base model it says
        # 40.2 M parameters in its table and 40.3 M in its text.
        macs = found.get('flops')
        return Row(
            'ClusTR',
            name,
            params=Printed(Decimal(found['params']), tolerance=0.002),
            macs=macs and Printed(Decimal(macs), tolerance=0.035),
            backbone=dict(type='ClusTR', **backbone) if backbone else None,
            config=f'clustr/{config}.py',
            accuracy=_accuracy(found),
        )

    for found in numbers['backbones']:
        arch = found['name']
        yield row(arch, found, f'clustr_{arch[0]}_imagenet', arch=arch)
    for found in numbers['single_scale_tiny']:
        reduction = found['reduction']
        if reduction == 'multi':
            config = 'ablation/clustr_t_100e_imagenet'
            yield row('tiny, multi-scale', found, config, arch='tiny')
            continue
        numbers_of_tokens = [number for [number] in reduction]
        yield row(
            f'tiny, {"/".join(numbers_of_tokens)}',
            found,
            f'ablation/clustr_t_single_{"_".join(numbers_of_tokens)}_imagenet',
            arch='tiny',
            reduction=[[int(number)] for number in numbers_of_tokens],
        )
    for found in numbers['sparse_attention_tiny']:
        variant = kind = found['attention']
        backbone = dict(arch='tiny', attention=kind)
        if kind == 'cluster':
            variant = 'single_64_16_4_1'
            backbone['reduction'] = (64, 16, 4, 1)
        config = f'ablation/clustr_t_{variant}_imagenet'
        yield row(f'tiny, {kind}', found, config, **backbone)
    for found in numbers['downstream_small']:
        if 'params' in found:
            task, data = found['task'], found['dataset']
            yield row(f'small, {task}', found, f'{task}_clustr_s_{data}')


def _hvt(numbers: dict) -> Iterator[Row]:
    def row(
        name: str, found: dict, classes: int, arch: str, config: str, **more
    ):
        return Row(
            'HVT',
            name,
            params=Printed(Decimal(found['params'])),
            macs=Printed(Decimal(found['flops'])),
            backbone=dict(type='HVT', arch=arch, **more),
            num_classes=classes,
            size=more.get('img_size', 224),
            config=f'hvt/{config}.py',
            accuracy=_accuracy(found),
        )

    def small_4(name: str, found: dict, variant: str, arch='s-4', **more):
        """A row about HVT-S-4 on CIFAR-100, or about a variant of it."""
        config = f'ablation/hvt_s4_{variant}' if variant else 'hvt_s4'
        return row(name, found, 100, arch, f'{config}_cifar100', **more)

    for found in numbers['imagenet']:
        arch = found['name'].lower().removeprefix('hvt-').replace('hvt-', '')
        # As in scale_ti4, of the arch 'scale-ti-4'.
        config = '_'.join(arch.rsplit('-', 1)[0].split('-')) + arch[-1]
        yield row(found['name'], found, 1000, arch, f'hvt_{config}_imagenet')
    tables = numbers['cifar100']
    for found in tables['pooling']:
        op = found['op']
        variant = '' if op == 'max' else op
        yield small_4(f'{op} pooling', found, variant, op=op)
    # The arch 's-4' has 12 blocks, 6 heads and patches of 16 pixels.
    for table, usual in ('depth', 12), ('heads', 6), ('patch', 16):
        for found in tables[table]:
            value = int(found[table])
            variant = '' if value == usual else f'{table}{value}'
            arch = f's-4-{variant}' if variant else 's-4'
            yield small_4(f'{table} {value}', found, variant, arch)
    for found in tables['resolution']:
        size = int(found['res'])
        variant = '' if size == 224 else f'{size}px'
        yield small_4(f'resolution {size}', found, variant, img_size=size)
    for found in tables['pooling_2d']:
        config = 'ablation/hvt_s2_2d_cifar100'
        yield row(found['name'], found, 100, 's-2-2d', config)


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
                level = found['level']
                top1 = found.get('top1')
                yield Row(
                    'Token Pooling',
                    f'{trunk}, level {level}, {method}',
                    macs=Printed(Decimal(found[column]), tolerance=tolerance),
                    backbone=dict(
                        type='TokenPoolingDeiT',
                        arch=arch,
                        keep=int(level),
                        method=method,
                    ),
                    config=_pooling_config(trunk, level, method),
                    accuracy=top1 and _pooling_accuracy(top1, method),
                )


def _pooling_config(trunk: str, level: str, method: str) -> str | None:
    """Its config; the tables' third level stands for all of some methods."""
    size = trunk.removeprefix('deit-')
    if method == 'kmedoids' and (size == 's' or level == '3'):
        return f'token_pooling/token_pooling_{size}_l{level}_imagenet.py'
    if (size, level) != ('s', '3'):
        return None
    return {
        'kmeans': 'token_pooling/token_pooling_s_l3_kmeans_imagenet.py',
        'significance': 'token_pooling/power_bert_s_l3_imagenet.py',
    }[method]


def _pooling_accuracy(top1: dict, method: str) -> str:
    if method == 'significance':
        return f'top-1 {top1["power"]}'
    return f'top-1 {top1[method]}, weighted {top1["w" + method]}'


def _dynamicvit(numbers: dict) -> Iterator[Row]:
    def row(name: str, macs: str, top1: str, config: str | None, **more):
        return Row(
            'DynamicViT',
            name,
            macs=Printed(Decimal(macs), more.pop('rounding', ROUND_FLOOR)),
            config=config and f'{config}_imagenet.py',
            accuracy=f'top-1 {top1}',
            **more,
        )

    trunks = {
        'deit-s': dict(type='DynamicViT', arch='deit-small'),
        'lvvit-s': dict(type='DynamicLVViT', arch='lvvit-small'),
    }
    configs = {
        'deit-s': 'dynamicvit/dynamicvit_s',
        'lvvit-s': 'dynamicvit/dynamicvit_lvvit_s',
    }
    # The dense models' costs were printed by their own papers, which round;
    # that of LV-ViT with its head on every token.
    for name, backbone, token_head, config in (
        (
            'deit-s',
            dict(type='ThinViT', arch='deit-small'),
            False,
            'token_pooling/deit_s',
        ),
        ('lvvit-s', dict(type='LVViT', arch='lvvit-small'), True, None),
    ):
        yield row(
            name,
            numbers[name]['base']['flops'],
            numbers[name]['base']['top1'],
            config,
            rounding=ROUND_HALF_EVEN,
            backbone=backbone,
            token_head=token_head,
        )
    for name, trunk in trunks.items():
        for rate, macs in numbers[name]['keep'].items():
            top1 = numbers[name]['top1'][rate]
            config = f'{configs[name]}_k{rate.replace(".", "")}'
            backbone = dict(trunk, keep=float(rate))
            yield row(f'{name}/{rate}', macs, top1, config, backbone=backbone)
    stages = dict(
        single='dynamicvit/ablation/dynamicvit_s_k025_1stage',
        two='dynamicvit/ablation/dynamicvit_s_k06_2stages',
        three='dynamicvit/dynamicvit_s_k07',
    )
    for name, found in numbers['stages'].items():
        keep = [float(share) for share in found['keep']]
        yield row(
            f'{name} stage',
            found['flops'],
            found['top1'],
            stages[name],
            backbone=dict(trunks['deit-s'], keep=keep),
        )


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
                # Those for other shares fuse the tokens that leave.
                config=(
                    'evit/distill_vit_s14_coco.py'
                    if found['keep'] == '1.0'
                    else None
                ),
            )
    for found in numbers['deit_small_patch16']:
        keep = found['keep']
        yield Row(
            'EViT',
            f'deit-s/{keep}',
            macs=Printed(Decimal(found['flops'])),
            backbone=dict(type='EViT', keep=float(keep)),
            config=f'evit/evit_s_k{keep.replace(".", "")}_imagenet.py',
            accuracy=_accuracy(found),
        )


_ROWS = dict(
    clustr=_clustr,
    hvt=_hvt,
    token_pooling=_token_pooling,
    dynamicvit=_dynamicvit,
    evit=_evit,
)


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
    parts = [_ZOO_HEAD]
    for paper, pairs in _by_paper(measured):
        parts.append(f'\n## {paper}\n\n{_ZOO_NOTES[paper]}\n\n{_ZOO_TABLE}')
        for row, found in pairs:
            cells = [row.name, *_numbers(row, found), row.accuracy]
            link = row.config and (
                f'[`{Path(row.config).stem}`](../configs/{row.config})'
            )
            line = ' | '.join(cell or '' for cell in [*cells, link])
            parts.append(f'| {line} |\n')
    return ''.join(parts)


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
that they are about, and no weights are offered.

A config is linked where there is one with just this model.
"""
_ZOO_TABLE = """\
| model | params, paper | params, ours | MACs, paper | MACs, ours \
| accuracy in the paper | config |
|---|---:|---:|---:|---:|---|---|
"""
_ZOO_NOTES = {
    'ClusTR': (
        'Convolutions and linear layers are counted, attention and clustering '
        'are not.\nThe paper does not say how it counts: MACs agree within '
        '3.5 %. The last rows are\nwhole models, heads included.'
    ),
    'HVT': (
        'The first rows are for ImageNet, from `conv pooling` on for '
        'CIFAR-100, resized.'
    ),
    'Token Pooling': (
        'Rows are named by trunk, sparsity level and rule. The paper counts '
        'clustering in\nblocks that keep all tokens too, where ours does '
        'nothing: MACs with clustering\nagree within 6 %.'
    ),
    'DynamicViT': (
        'The paper cuts digits off (3.46 is printed as 3.4). Its dense models '
        'were printed\nby their own papers, which round.'
    ),
    'EViT': (
        'The first rows have patches of 14 pixels, no head, and do not fuse '
        'the tokens\nthat leave, as `configs/evit/distill_evit_s14_*` do; '
        'their MACs agree within\n0.3 %. The others were published with the '
        "method's code."
    ),
}
