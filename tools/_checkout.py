"""Imported by the tools: finds the package beside them if it is there."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
