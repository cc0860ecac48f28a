"""Generated data sets: shapes in scenes, in the layouts of real data."""

from .generate import TASKS, make_shapes

__all__ = ['TASKS', 'make_shapes']
