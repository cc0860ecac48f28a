"""`make_shapes`: a generated data set for a task, in a folder."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mmengine
import numpy as np

from .ade20k import ADE20K
from .scenes import segmentation_scene
from .shapes import STUFF, THINGS

MANIFEST = 'shapes.json'
# Raise it when the same arguments no longer draw the same pictures.
VERSION = 1

CLASSES = (*STUFF, *THINGS)
PALETTE = [
    [140, 86, 75],
    [199, 222, 240],
    [31, 119, 180],
    [214, 39, 40],
    [255, 187, 60],
    [44, 160, 44],
    [148, 103, 189],
    [240, 228, 66],
]


@dataclass(frozen=True)
class Task:
    scene: Callable  # (rng, height, width, index) -> Scene
    layout: Callable  # (classes) -> how to write scenes
    size: int
    metainfo: dict  # for the configs: the same literal stands there


TASKS = {
    'segmentation': Task(
        scene=segmentation_scene,
        layout=ADE20K,
        size=160,
        metainfo={'classes': CLASSES, 'palette': PALETTE},
    ),
}


def make_shapes(
    task, out, num=200, seed=0, size=None, val=0.2, overwrite=False
):
    """Draw `num` scenes and write them in the layout that `task` is read in.

    A picture depends on the seed and on its number alone: a larger `num`
    extends a smaller one. Called again with the same arguments it returns at
    once; what an interruption left unfinished is drawn again.

    Args:
        task: one of `TASKS`.
        out: folder; must be new, empty or written by this function.
        num: pictures, training and validation together.
        size: (height, width) or one number for both; None: the task's own.
        val: the part of the pictures that is held out, between 0 and 1.
        overwrite: replace a set that was made with other arguments.

    Returns:
        The folder as a Path.
    """
    out = Path(out)
    wanted = _check(task, num, seed, size, val)
    found = _read_manifest(out)
    if found is not None:
        if found == dict(wanted, complete=True) and not _missing(out, found):
            return out
        if _continues(found, wanted):
            state = 'extended' if found['complete'] else 'was left unfinished'
            print(f'{out} {state}: drawing it again')
        elif overwrite:
            _remove(out, found)
        else:
            raise FileExistsError(_difference(out, found, wanted))
    _draw(out, wanted)
    return out


def split_of(index, val):
    """'train' or 'val': every (1 / val)-th picture is held out."""
    return 'val' if int((index + 1) * val) > int(index * val) else 'train'


def _check(task, num, seed, size, val):
    """The arguments as the manifest records them."""
    if task not in TASKS:
        raise ValueError(f'unknown task {task!r}; there are {list(TASKS)}')
    if size is None:
        size = TASKS[task].size
    size = [size, size] if np.isscalar(size) else list(size)
    if len(size) != 2 or not all(32 <= n <= 4096 for n in size):
        raise ValueError(
            f'size {size} must be one or two numbers (height, width) '
            'from 32 to 4096'
        )
    if not 0 < val < 1:
        raise ValueError(f'val {val} must lie between 0 and 1')
    if seed < 0:
        raise ValueError(f'seed {seed} must not be negative')
    if {split_of(i, val) for i in range(num)} != {'train', 'val'}:
        raise ValueError(
            f'num {num} with val {val} leaves no picture to train or to '
            'validate on; draw more'
        )
    return {
        'version': VERSION,
        'task': task,
        'num': int(num),
        'seed': int(seed),
        'size': [int(n) for n in size],
        'val': float(val),
    }


def _read_manifest(out):
    """What the folder holds; None if it is new or empty."""
    if not out.exists():
        return None
    if not out.is_dir():
        raise FileExistsError(f'{out} is a file, not a folder')
    manifest = out / MANIFEST
    if manifest.is_file():
        return json.loads(manifest.read_text())
    if any(not p.name.startswith('.') for p in out.iterdir()):
        raise FileExistsError(
            f'{out} is not empty and holds no {MANIFEST}: it was not written '
            'by make_shapes and is left as it is. Choose another folder.'
        )
    return None


def _continues(found, wanted):
    """Whether drawing `wanted` leaves nothing of `found` behind."""
    same = all(found.get(k) == wanted[k] for k in wanted if k != 'num')
    return same and found['num'] <= wanted['num']


def _difference(out, found, wanted):
    what = ', '.join(
        f'{k} {found.get(k)} (asked: {wanted[k]})'
        for k in wanted
        if found.get(k) != wanted[k]
    )
    return (
        f'{out} holds a generated set with {what}. Choose another folder, '
        'or replace it with overwrite=True (--overwrite).'
    )


def _layout(arguments):
    task = TASKS[arguments['task']]
    return task.layout(task.metainfo['classes'])


def _paths(arguments):
    layout, val = _layout(arguments), arguments['val']
    for index in range(arguments['num']):
        yield from layout.paths(index, split_of(index, val))
    yield from layout.summary_paths()


def _missing(out, arguments):
    return any(not (out / path).is_file() for path in _paths(arguments))


def _remove(out, arguments):
    for path in _paths(arguments):
        (out / path).unlink(missing_ok=True)


def _draw(out, arguments):
    task, layout = TASKS[arguments['task']], _layout(arguments)
    _write_manifest(out, dict(arguments, complete=False))
    for index in mmengine.track_iter_progress(range(arguments['num'])):
        rng = np.random.default_rng([arguments['seed'], index])
        scene = task.scene(rng, *arguments['size'], index)
        split = split_of(index, arguments['val'])
        contents = layout.add(scene, index, split)
        for path, content in zip(
            layout.paths(index, split), contents, strict=True
        ):
            _write(out / path, content)
    for path, content in zip(
        layout.summary_paths(), layout.summaries(), strict=True
    ):
        _write(out / path, content)
    _write_manifest(out, dict(arguments, complete=True))


def _write_manifest(out, content):
    _write(out / MANIFEST, (json.dumps(content, indent=2) + '\n').encode())


def _write(path, content):
    """Whole or not at all, whoever else writes or reads the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'.{path.name}.{os.getpid()}')
    part.write_bytes(content)
    part.replace(path)
