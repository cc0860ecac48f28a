"""What plain ViTs cost in the papers, by torch's own counter.

The counter of this package, which needs values, is another:
`tests/test_analysis/test_paper.py`.
"""

import pytest

from clustr_mm.analysis.paper import rows
from clustr_mm.backbones import HVT
from clustr_mm.backbones.token_pooling import KEEP
from clustr_mm.registry import MODELS
from tests.recorded import giga_macs, on_meta

# What clusters costs depends on the values.
ROWS = [
    row
    for row in rows()
    if row.backbone
    and row.backbone['type'] != 'ClusTR'
    and row.backbone.get('method', 'significance') == 'significance'
]


@pytest.mark.parametrize('row', ROWS, ids=lambda row: row.name)
def test_costs(row):
    model = on_meta(MODELS.build, row.backbone)
    # HVT's paper counts a head of 1000 classes on CIFAR-100, too.
    classes = 1000 if row.num_classes else 0
    tokens = 197 if row.token_head else 1
    head = tokens * model.embed_dims * classes / 1e9
    assert row.macs.agrees(giga_macs(model, row.size) + head)
    if row.params:
        params = sum(p.numel() for p in model.parameters())
        params += (model.embed_dims + 1) * row.num_classes
        assert row.params.agrees(params / 1e6)


def backbones(kind):
    return [row.backbone for row in ROWS if row.backbone['type'] == kind]


def test_every_preset_is_in_a_table():
    kinds = {backbone['arch'] for backbone in backbones('HVT')}
    assert kinds == set(HVT.arch_zoo)
    levels = {(b['arch'], b['keep']) for b in backbones('TokenPoolingDeiT')}
    assert levels == {(arch, i) for arch in KEEP for i in range(8)}
