"""Packaging. `make` needs none of it: see the Makefile and requirements/."""

import runpy
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithMim(build_py):
    """Put beside the modules, in `.mim`, what MIM and MMEngine look for there.

    An editable installation has links to the checkout instead of copies.
    """

    SHIPPED = ('configs', 'tools', 'model-index.yml')

    def run(self):
        super().run()
        if self.editable_mode:
            package = Path(self.get_package_dir('clustr_mm'))
        else:
            package = Path(self.build_lib, 'clustr_mm')
        # Anew: an earlier build may hold files that are gone by now.
        shutil.rmtree(package / '.mim', ignore_errors=True)
        (package / '.mim').mkdir()
        for name in self.SHIPPED:
            target = package / '.mim' / name
            if self.editable_mode:
                target.symlink_to(ROOT / name)
            elif (ROOT / name).is_dir():
                shutil.copytree(
                    ROOT / name,
                    target,
                    ignore=shutil.ignore_patterns('__pycache__'),
                )
            else:
                shutil.copy(ROOT / name, target)


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
    cmdclass=dict(build_py=BuildWithMim),
    # Importing clustr_mm needs torch, mmengine and mmcv as well, under the
    # names and in the versions that the user has: pip is not to touch them.
    install_requires=['numpy'],
    extras_require={'mim': requirements('mminstall.txt')},
)
