"""The packages that clustr_mm works with, and what to do without them.

Those of the toolboxes are in `clustr_mm.toolboxes`.
"""

import re
from importlib import import_module, metadata
from typing import NamedTuple

from .errors import UserError


class Package(NamedTuple):
    """A package by its import name."""

    least: str  # oldest version that works
    below: str  # first version that is not known to work
    distribution: str  # its name for pip
    continuation: str | None = None  # and that of the maintained one


PACKAGES = {
    'torch': Package('2.1.0', '3.0.0', 'torch'),
    'mmengine': Package('0.10.3', '1.0.0', 'mmengine', 'onedl-mmengine'),
    'mmcv': Package('2.1.0', '3.0.0', 'mmcv', 'onedl-mmcv'),
}


class DependencyError(UserError, ImportError):
    """A package is missing, broken, too old or too new."""


def require(name: str, package: Package | None = None) -> None:
    """Raise an error that says what to install unless the package fits.

    Args:
        name (str): What it is imported by.
        package (Package, optional): Its versions that do, unless they are
            among `PACKAGES`.
    """
    package = package or PACKAGES[name]
    try:
        version = import_module(name).__version__
    except ModuleNotFoundError as error:
        found = 'is not installed'
        if error.name != name:
            found = f'cannot be imported, as {error.name} is missing'
    except (ImportError, AssertionError) as error:
        # The toolboxes assert the versions of what they build on.
        found = f'cannot be imported: {error}'
    else:
        if _digits(package.least) <= _digits(version) < _digits(package.below):
            return
        found = f'is installed in version {version}'
    fitting = f'>={package.least},<{package.below}'
    raise DependencyError(
        f'clustr_mm needs {name}{fitting}, but {name} {found}. Install it '
        f"with: pip install '{_distribution(package)}{fitting}'"
    )


def _distribution(package: Package) -> str:
    """What to install: nothing that overwrites half of what is there."""
    try:
        metadata.distribution('mmengine')
    except metadata.PackageNotFoundError:
        return package.continuation or package.distribution
    return package.distribution


def _digits(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r'\d+', version)[:3]))
