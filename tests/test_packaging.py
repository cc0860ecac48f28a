"""The package as pip installs it, away from the checkout."""

import shutil
import sys
import zipfile

import pytest

from tests.runs import ROOT, run

SOURCES = (
    'clustr_mm',
    'configs',
    'tools',
    'LICENSE',
    'MANIFEST.in',
    'README.md',
    'model-index.yml',
    'pyproject.toml',
    'setup.py',
)
PIP = (sys.executable, '-m', 'pip', '-q', '--disable-pip-version-check')
PYTHON = """
import sys
sys.path.insert(0, sys.argv[1])
import clustr_mm
assert clustr_mm.__file__.startswith(sys.argv[1]), clustr_mm.__file__
"""
INHERITS = """
_base_ = 'clustr_mm::clustr/upernet_clustr_s_ade20k.py'
model = dict(backbone=dict(window=56), decode_head=dict(num_classes=7))
"""
LOADS = f"""{PYTHON}
from mmengine.hub import get_config
from clustr_mm.analysis.models import build_model, read_config
cfg = read_config('mine.py')
print(type(build_model(cfg)).__name__)
backbone, head = cfg.model.backbone, cfg.model.decode_head
print(cfg.default_scope, backbone.arch, backbone.window, head.num_classes)
cfg = get_config('clustr_mm::clustr/upernet_clustr_s_ade20k.py')
print(clustr_mm.list_models('hvt_s1_im*', pretrained=True))
print(type(build_model(cfg).backbone).__name__)
"""
COUNTS = f"""{PYTHON}
from clustr_mm.analysis.paper import config_folder, measure, rows
print(config_folder())
[row] = [row for row in rows() if row.name == 'small, upernet']
print(row.agrees(measure(row)))
"""


@pytest.fixture(scope='module')
def sources(tmp_path_factory):
    """A copy of what is built, as building writes beside it."""
    folder = tmp_path_factory.mktemp('sources')
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns('__pycache__', '.mim')
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope='module')
def wheel(sources, tmp_path_factory):
    folder = tmp_path_factory.mktemp('wheel')
    options = ('--no-deps', '--no-build-isolation', '-w', folder)
    run(*PIP, 'wheel', '.', *options, cwd=sources)
    [path] = folder.glob('*.whl')
    return path


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    folder = tmp_path_factory.mktemp('installed')
    options = ('--no-index', '--no-deps', '--target', folder)
    run(*PIP, 'install', *options, wheel, cwd=folder)
    return folder


def files_in(folder):
    return {
        str(path.relative_to(folder))
        for path in folder.rglob('*')
        if path.is_file()
    }


@pytest.mark.slow
def test_wheel_holds_what_is_in_the_sources(sources, wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    # In other words, neither tests nor configs at the top.
    assert {name.split('/')[0] for name in names} == {
        'clustr_mm',
        next(n for n in names if '.dist-info/' in n).split('/')[0],
    }
    prefix = 'clustr_mm/.mim/'
    shipped = {n.removeprefix(prefix) for n in names if n.startswith(prefix)}
    expected = {'model-index.yml'}
    for folder in ('configs', 'tools'):
        found = files_in(sources / folder)
        expected |= {f'{folder}/{name}' for name in found}
    assert shipped == expected
    modules = {n for n in names if n.startswith('clustr_mm/')}
    own = {f'clustr_mm/{name}' for name in files_in(sources / 'clustr_mm')}
    assert own <= modules


@pytest.mark.slow
def test_a_wheel_of_the_source_distribution_is_the_same(
    sources, wheel, tmp_path
):
    run(
        sys.executable,
        'setup.py',
        '-q',
        'sdist',
        '-d',
        tmp_path,
        cwd=sources,
    )
    [archive] = tmp_path.glob('*.tar.gz')
    run(
        *PIP,
        'wheel',
        archive,
        '--no-deps',
        '--no-build-isolation',
        '-w',
        tmp_path,
        cwd=tmp_path,
    )
    [again] = tmp_path.glob('*.whl')
    assert set(zipfile.ZipFile(again).namelist()) == set(
        zipfile.ZipFile(wheel).namelist()
    )


@pytest.mark.slow
def test_a_build_forgets_files_that_are_gone(sources, wheel, tmp_path):
    gone = sources / 'configs/gone.py'
    command = [sys.executable, 'setup.py', '-q', 'build_py', '-d', tmp_path]
    gone.touch()
    run(*command, cwd=sources)
    assert (tmp_path / 'clustr_mm/.mim/configs/gone.py').exists()
    gone.unlink()
    run(*command, cwd=sources)
    assert not (tmp_path / 'clustr_mm/.mim/configs/gone.py').exists()


@pytest.mark.slow
def test_configs_are_inherited_from_the_installed_package(installed, tmp_path):
    pytest.importorskip('mmseg')
    (tmp_path / 'mine.py').write_text(INHERITS)
    out = run(
        sys.executable,
        '-c',
        LOADS,
        installed,
        cwd=tmp_path,
        PYTHONPATH='',
    )
    lines = out.splitlines()
    assert 'mmseg small 56 7' in lines
    assert "['hvt_s1_imagenet']" in lines
    assert lines[-1] == 'ClusTR'


@pytest.mark.slow
def test_paper_rows_of_the_installed_package(installed, tmp_path):
    pytest.importorskip('mmseg')
    command = [sys.executable, '-c', COUNTS, installed]
    out = run(*command, cwd=tmp_path, PYTHONPATH='')
    assert str(installed / 'clustr_mm/.mim/configs') in out
    assert out.splitlines()[-1] == 'True'


@pytest.mark.slow
def test_an_editable_installation_links(sources, tmp_path):
    shutil.copytree(sources, tmp_path / 'checkout')
    run(
        *PIP,
        'install',
        '-e',
        tmp_path / 'checkout',
        '--no-index',
        '--no-deps',
        '--no-build-isolation',
        '--target',
        tmp_path / 'installed',
        cwd=tmp_path,
    )
    mim = tmp_path / 'checkout/clustr_mm/.mim'
    for name in ('configs', 'tools', 'model-index.yml'):
        assert (mim / name).resolve() == tmp_path / 'checkout' / name
