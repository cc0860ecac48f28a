import re
import sys
from importlib import metadata
from types import ModuleType

import pytest

from clustr_mm.dependencies import DependencyError
from clustr_mm.toolboxes import TOOLBOXES
from tests.runs import ROOT, run


def pretend(monkeypatch, name, version):
    module = ModuleType(name)
    module.__version__ = version
    monkeypatch.setitem(sys.modules, name, module)


def installed(monkeypatch, package):
    """Of all packages, only this one."""

    def distribution(name):
        if name != package:
            raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, 'distribution', distribution)


@pytest.mark.parametrize('version', ['1.2.2', '1.4.2', '1.9.0rc1'])
def test_fitting_version(monkeypatch, version):
    pretend(monkeypatch, 'mmseg', version)
    TOOLBOXES['mmseg'].require()


@pytest.mark.parametrize('version', ['1.2.1', '0.30.0', '2.0.0', '1.2'])
def test_version_that_does_not_fit(monkeypatch, version):
    installed(monkeypatch, 'onedl-mmengine')
    pretend(monkeypatch, 'mmseg', version)
    with pytest.raises(DependencyError) as error:
        TOOLBOXES['mmseg'].require()
    assert f'mmseg is installed in version {version}' in str(error.value)
    assert "pip install 'onedl-mmsegmentation>=1.2.2,<2.0.0'" in str(
        error.value
    )


@pytest.mark.parametrize(
    ('present', 'wanted'),
    [('mmengine', 'mmdet'), ('onedl-mmengine', 'onedl-mmdetection')],
)
def test_installs_what_goes_with_the_rest(monkeypatch, present, wanted):
    installed(monkeypatch, present)
    pretend(monkeypatch, 'mmdet', '2.0')
    with pytest.raises(DependencyError, match=f"pip install '{wanted}>="):
        TOOLBOXES['mmdet'].require()


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, 'mmdet', None)
    with pytest.raises(DependencyError, match='mmdet is not installed'):
        TOOLBOXES['mmdet'].require()


def hide(tmp_path, name, text):
    """A package that stands in for the installed one."""
    (tmp_path / f'{name}.py').write_text(text)
    return dict(PYTHONPATH=f'{tmp_path}:{ROOT}')


@pytest.mark.parametrize(
    ('text', 'found'),
    [
        ('raise ModuleNotFoundError(name="mmcv")', 'is not installed'),
        ('__version__ = "1.7.1"', 'is installed in version 1.7.1'),
        ('__version__ = "3.0.0"', 'is installed in version 3.0.0'),
        ('import of_something', 'as of_something is missing'),
        ('assert False, "too new a torch"', 'too new a torch'),
    ],
)
def test_import_names_package_version_and_command(tmp_path, text, found):
    message = run(
        *(sys.executable, '-c', 'import clustr_mm'),
        cwd=tmp_path,
        ok=False,
        **hide(tmp_path, 'mmcv', text),
    ).splitlines()[-1]
    assert 'mmcv' in message
    assert found in message
    assert re.search(r"pip install '(onedl-)?mmcv>=2.1.0,<3.0.0'", message)


def test_toolbox_is_needed_only_by_its_scope(tmp_path):
    environment = hide(tmp_path, 'mmseg', 'raise ModuleNotFoundError("no")')
    command = 'import clustr_mm; clustr_mm.backbones.ClusTR("tiny")'
    run(sys.executable, '-c', command, cwd=tmp_path, **environment)
    config = ROOT / 'configs/quickstart/upernet_clustr_shapes.py'
    text = run(
        *(sys.executable, ROOT / 'tools/train.py', config),
        cwd=tmp_path,
        ok=False,
        **environment,
    )
    assert 'pip install' in text
    assert 'Traceback' not in text


def test_tokens_need_only_torch(tmp_path):
    """They could be lifted out into another project."""
    code = (
        'import sys; sys.modules.update(mmengine=None, mmcv=None)\n'
        'import importlib.util, pathlib\n'
        f'root = pathlib.Path({str(ROOT / "clustr_mm/tokens")!r})\n'
        'import types; package = types.ModuleType("clustr_mm")\n'
        'package.__path__ = [str(root.parent)]\n'
        'sys.modules["clustr_mm"] = package\n'
        'import importlib\n'
        'for path in root.glob("*.py"):\n'
        '    importlib.import_module(f"clustr_mm.tokens.{path.stem}")\n'
    )
    run(sys.executable, '-c', code, cwd=tmp_path)
