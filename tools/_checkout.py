"""Imported by the tools: finds the package beside them if it is there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

try:
    import clustr_mm  # noqa: F401
except ImportError as error:
    if type(error).__name__ != 'DependencyError':
        raise
    sys.exit(
        f'\nerror: {error}\nOr use the interpreter that `make env` sets up: '
        'PATH=$(dirname $(make -s print-python)):$PATH'
    )
