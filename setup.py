"""Packaging. `make` needs none of it: see the Makefile and requirements/."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent


def requirements(name):
    lines = (ROOT / 'requirements' / name).read_text().splitlines()
    return [line for line in lines if line and not line.startswith('#')]


setup(
    name='clustr_mm',
    version=runpy.run_path(str(ROOT / 'clustr_mm/version.py'))['__version__'],
    description='Token-thinning backbones for OpenMMLab',
    license='Apache-2.0',
    python_requires='>=3.10',
    packages=find_packages(include=['clustr_mm', 'clustr_mm.*']),
    package_data={'clustr_mm.analysis': ['*.yml']},
    # Importing clustr_mm needs torch, mmengine and mmcv as well, under the
    # names and in the versions that the user has: pip is not to touch them.
    install_requires=['numpy'],
    extras_require={'mim': requirements('mminstall.txt')},
)
