"""Where things are: the rooms, what they import, and what the pages say."""

import json
import re
import sys

from tests import import_graph
from tests.runs import ROOT, run

LISTS_MODULES = """
import sys
import mmcv.cnn, mmengine.config, mmengine.model, mmengine.registry
# Of torch, the part that is told what not to compile.
import torch._dynamo
before = set(sys.modules)
import clustr_mm
import json
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def test_every_room_has_a_floor():
    floors = [room for row in import_graph.FLOORS for room in row]
    assert sorted(floors) == sorted(import_graph.rooms())


def test_nothing_imports_upwards():
    found = import_graph.imports()
    assert len(found) > 20
    upward = {edge: found[edge] for edge in import_graph.upward(found)}
    assert not upward


def test_picture_is_of_the_imports():
    expected = import_graph.draw(import_graph.imports())
    assert import_graph.PICTURE.read_text() == expected, (
        'draw it anew: python -m tests.import_graph'
    )


def test_lines_that_follow_from_others_are_left_out():
    edges = {('runs', 'tokens'), ('runs', 'layers'), ('layers', 'tokens')}
    expected = {('runs', 'layers'), ('layers', 'tokens')}
    assert import_graph.reduced(edges) == expected


def table(page):
    """The lines of a page's map of the package, by their folders."""
    text = (ROOT / page).read_text()
    lines = re.findall(r'^ {4}clustr_mm/(?:(\w+)/)? +(\S.*)', text, re.M)
    assert len(dict(lines)) == len(lines)
    return dict(lines)


def test_pages_list_the_rooms():
    rooms = import_graph.rooms() - {import_graph.BESIDE}
    design = table('docs/design.md')
    assert set(design) == rooms | {''}
    assert table('CONTRIBUTING.md') == design
    beside = {path.stem for path in import_graph.PACKAGE.glob('*.py')}
    assert set(re.findall(r'\w+', design[''])) >= beside - {
        '__init__',
        'version',
    }


def test_importing_the_package_costs_models_alone(tmp_path):
    """Not what draws, shards, trains or belongs to a toolbox."""
    names = run(
        sys.executable, '-c', LISTS_MODULES, cwd=tmp_path, PYTHONPATH=str(ROOT)
    )
    found = json.loads(names.splitlines()[-1])
    others = {name.partition('.')[0] for name in found}
    assert others - set(sys.stdlib_module_names) == {'clustr_mm'}
    own = {name.split('.')[1] for name in found if name.count('.') > 1}
    assert own & import_graph.rooms() == {
        'backbones',
        'layers',
        'necks',
        'tokens',
    }
