"""Checkpoints: published layouts and ours, read safely, written atomically."""

from .layouts import convert, convert_file, read, revert
from .load import load_weights

__all__ = ['convert', 'convert_file', 'load_weights', 'read', 'revert']
