"""What pyproject.toml asks for, and the versions in requirements/."""

import re
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest
from packaging.requirements import Requirement

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

from clustr_mm.dependencies import PACKAGES
from tests.runs import ROOT

PROJECT = tomllib.loads((ROOT / 'pyproject.toml').read_text())
PYTHONS = {
    'current': ('3.10', '3.11', '3.12', '3.13', '3.14'),
    'upstream': ('3.10', '3.11'),
}
each_stack = pytest.mark.parametrize('stack', PYTHONS)
Locked = namedtuple('Locked', 'requirement hashes')


def locked(stack):
    text = (ROOT / f'requirements/{stack}.txt').read_text()
    text = re.sub(r'^ *#.*\n', '', text, flags=re.M).replace('\\\n', '')
    for line in text.splitlines():
        requirement, *hashes = re.split(r'\s+--hash=', line)
        yield Locked(Requirement(requirement), hashes)


def asked(group):
    for entry in PROJECT['dependency-groups'][group]:
        if isinstance(entry, dict):
            yield from asked(entry['include-group'])
        else:
            yield Requirement(entry)


def versions(stack, python):
    """What a Linux machine with that Python gets."""
    machine = dict(python_version=python, python_full_version=f'{python}.0')
    machine.update(sys_platform='linux', platform_machine='x86_64')
    found = {}
    for requirement, _ in locked(stack):
        if not requirement.marker or requirement.marker.evaluate(machine):
            assert requirement.name not in found, requirement
            [pin] = requirement.specifier
            assert pin.operator == '=='
            found[requirement.name] = pin.version
    return found


@each_stack
def test_lock_names_versions_and_hashes_and_no_place(stack):
    """Where packages come from is for the user's settings to say."""
    text = (ROOT / f'requirements/{stack}.txt').read_text()
    assert '://' not in text
    assert 'index' not in text.replace('modelindex', '').replace(
        'model-index', ''
    )
    packages = list(locked(stack))
    assert len(packages) > 90
    for requirement, hashes in packages:
        assert hashes, requirement
        assert all(re.fullmatch('sha256:[0-9a-f]{64}', x) for x in hashes)


@each_stack
def test_lock_holds_what_is_asked_for_on_every_python(stack):
    for python in PYTHONS[stack]:
        found = versions(stack, python)
        for requirement in asked(stack):
            version = found[requirement.name]
            assert version in requirement.specifier, requirement
        # They overwrite each other's files.
        assert 'opencv-python' not in found


def test_the_script_takes_the_pythons_of_the_lock():
    script = (ROOT / 'tools/set_up.sh').read_text()
    for stack, pythons in PYTHONS.items():
        last = int(pythons[-1].split('.')[1])
        pattern = f"{stack}) pythons='>=3.10,<3.{last + 1}'"
        assert pattern in script


def test_mmcv_is_compiled_for_the_torch_it_runs_with():
    settings = PROJECT['tool']['uv']
    for package in ('onedl-mmcv', 'mmcv'):
        needs = settings['extra-build-dependencies'][package]
        assert {'requirement': 'torch', 'match-runtime': True} in needs
        variables = settings['extra-build-variables'][package]
        assert variables['MMCV_WITH_OPS'] == '1'


def test_corrected_metadata_is_that_of_the_locked_versions():
    """Of another version uv would take what the package itself asks for."""
    corrected = PROJECT['tool']['uv']['dependency-metadata']
    assert corrected
    for entry in corrected:
        found = [
            requirement
            for stack in PYTHONS
            for requirement, _ in locked(stack)
            if requirement.name == entry['name']
        ]
        assert found
        for requirement in found:
            assert entry['version'] in requirement.specifier


def test_mim_gets_the_ranges_that_the_package_checks():
    assert PROJECT['project']['optional-dependencies']['mim'] == [
        f'{name}>={PACKAGES[name].least},<{PACKAGES[name].below}'
        for name in ('mmcv', 'mmengine')
    ]


def test_package_asks_for_nothing_of_others(tmp_path):
    command = [sys.executable, 'setup.py', '-q', 'egg_info']
    subprocess.run([*command, '-e', tmp_path], cwd=ROOT, check=True)
    text = (tmp_path / 'clustr_mm.egg-info' / 'requires.txt').read_text()
    assert text.split('[mim]')[0].split() == ['numpy']


def test_source_of_xtcocotools_is_mended(tmp_path):
    """Once, and nothing elsewhere. The lines are those of its release."""
    mask = tmp_path / 'xtcocotools/_mask.pyx'
    setup = tmp_path / 'setup.py'
    setup.write_text("""
version_file = 'version.py'
def get_version():
    with open(version_file, 'r') as f:
        exec(compile(f.read(), version_file, 'exec'))
    return locals()['__version__']
print(get_version())
""")
    (tmp_path / 'version.py').write_text("__version__ = '1.14.3'")

    def run(*command):
        path = dict(PYTHONPATH=str(ROOT / 'tools/xtcocotools_build'))
        command = [sys.executable, *command]
        return subprocess.check_output(command, cwd=tmp_path, env=path)

    unchanged = setup.read_text()
    run('-c', '')
    assert setup.read_text() == unchanged
    mask.parent.mkdir()
    mask.write_text('PyArray_ENABLEFLAGS(iou, np.NPY_OWNDATA)')
    for _ in range(2):
        assert run('setup.py') == b'1.14.3\n'
        assert mask.read_text() == (
            'PyArray_ENABLEFLAGS(iou, np.NPY_ARRAY_OWNDATA)'
        )
    assert 'locals' not in setup.read_text()


def test_masks_of_xtcocotools():
    """They fail at run time if it was built as it is published."""
    mask = pytest.importorskip('xtcocotools.mask')
    picture = np.asfortranarray(np.eye(5, dtype=np.uint8))
    encoded = mask.encode(picture)
    assert (mask.decode(encoded) == picture).all()
    assert mask.iou([encoded], [encoded], [0]) == [[1]]
    assert mask.toBbox(encoded).tolist() == [0, 0, 5, 5]
