"""What pyproject.toml cannot say of the package."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithMim(build_py):
    """Put beside the modules, in `.mim`, what MIM and MMEngine look for there.

    An editable installation has links to the checkout instead of copies.
    """

    SHIPPED = ('configs', 'tools', 'model-index.yml')

    def run(self) -> None:
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


setup(cmdclass=dict(build_py=BuildWithMim))
