"""`make_shapes`: a generated data set for a task, in a folder."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator

from clustr_mm.errors import UserError
from clustr_mm.outputs import complete_file, make_folder
from clustr_mm.progress import track
from .ade20k import ADE20K
from .coco import Coco
from .coco_wholebody import CocoWholeBody
from .figures import PERSON
from .image_folder import ImageFolder
from .layout import Layout, Picture
from .scenes import (
    Scene,
    classification_scene,
    detection_scene,
    pose_scene,
    segmentation_scene,
)
from .things import STUFF, THINGS

MANIFEST = 'shapes.json'
# Raise it when the same arguments no longer draw the same pictures.
VERSION = 1

# The colours that pictures of results use, RGB.
PALETTE = {
    'bricks': (140, 86, 75),
    'clouds': (199, 222, 240),
    'waves': (31, 119, 180),
    'ball': (214, 39, 40),
    'box': (255, 187, 60),
    'cone': (44, 160, 44),
    'ring': (148, 103, 189),
    'star': (240, 228, 66),
    PERSON: (220, 20, 60),
}


@dataclass(frozen=True)
class Task:
    """What is drawn for a task, and how it is written."""

    scene: Callable[[Generator, int, int, Picture], Scene]
    layout: type[Layout]
    size: int
    classes: tuple[str, ...]

    @property
    def metainfo(self) -> dict:
        """What the configs say as a literal."""
        palette = [PALETTE[name] for name in self.classes]
        return {'classes': self.classes, 'palette': palette}


TASKS = {
    'segmentation': Task(
        segmentation_scene, ADE20K, size=160, classes=(*STUFF, *THINGS)
    ),
    'classification': Task(
        classification_scene, ImageFolder, size=96, classes=tuple(THINGS)
    ),
    'detection': Task(detection_scene, Coco, size=160, classes=tuple(THINGS)),
    'pose': Task(pose_scene, CocoWholeBody, size=256, classes=(PERSON,)),
}


def make_shapes(
    task: str,
    out: str | Path,
    num: int = 200,
    seed: int = 0,
    size: int | Sequence[int] | None = None,
    val: float = 0.2,
    overwrite: bool = False,
) -> Path:
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
        The folder.
    """
    out = Path(out)
    wanted = _check(task, num, seed, size, val)
    found = _read_manifest(out)
    if found == wanted | {'complete': True} and not _missing(out, wanted):
        return out
    if found is not None:
        if _continues(found, wanted):
            print(f'{out} is unfinished, smaller or lacks files: drawing it')
        elif overwrite:
            _remove(out, found)
        else:
            raise UserError(_difference(out, found, wanted))
    _draw(out, wanted)
    return out


def pictures(num: int, val: float) -> Iterator[Picture]:
    """Every (1 / val)-th picture is held out, however many follow."""
    for index in range(num):
        held_out = int(index * val)  # so far
        if int((index + 1) * val) > held_out:
            yield Picture(index, 'val', held_out)
        else:
            yield Picture(index, 'train', index - held_out)


def _check(
    task: str,
    num: int,
    seed: int,
    size: int | Sequence[int] | None,
    val: float,
) -> dict:
    """The arguments as the manifest records them."""
    if task not in TASKS:
        raise UserError(f'unknown task {task!r}; there are {list(TASKS)}')
    if size is None:
        size = TASKS[task].size
    size = [size, size] if np.isscalar(size) else list(size)
    if len(size) != 2 or not all(32 <= n <= 4096 for n in size):
        raise UserError(
            f'size {size} must be one or two numbers (height, width) '
            'from 32 to 4096'
        )
    if not 0 < val < 1:
        raise UserError(f'val must lie between 0 and 1, not be {val:g}')
    if seed < 0:
        raise UserError(f'seed {seed} must not be negative')
    held_out = int(num * val)
    least = _layout({'task': task}).least
    if min(held_out, num - held_out) < least:
        raise UserError(
            f'num {num} with val {val} leaves {num - held_out} to train and '
            f'{held_out} to validate on; {task} needs {least} of either: give '
            'a larger num'
        )
    return {
        'version': VERSION,
        'task': task,
        'num': int(num),
        'seed': int(seed),
        'size': [int(n) for n in size],
        'val': float(val),
    }


def _read_manifest(out: Path) -> dict | None:
    """The arguments that a folder was drawn with; None if it is empty."""
    if not out.exists():
        return None
    if not out.is_dir():
        raise UserError(f'{out} is a file: give a folder')
    try:
        found = json.loads((out / MANIFEST).read_text())
        ours = found['task'] in TASKS and found['num'] > 0
    except (OSError, ValueError, LookupError, TypeError):
        ours = False  # absent, or somebody else's file
    if ours:
        return found
    if any(not p.name.startswith('.') for p in out.iterdir()):
        raise UserError(
            f'{out} is not empty and has no {MANIFEST} of make_shapes in it; '
            'what is there is left as it is. Choose another folder.'
        )
    return None


def _continues(found: dict, wanted: dict) -> bool:
    """Whether drawing `wanted` leaves nothing of `found` behind."""
    same = all(found.get(k) == wanted[k] for k in wanted if k != 'num')
    return same and found['num'] <= wanted['num']


def _difference(out: Path, found: dict, wanted: dict) -> str:
    what = ', '.join(
        f'{k} {found.get(k)} (asked: {wanted[k]})'
        for k in wanted
        if found.get(k) != wanted[k]
    )
    return (
        f'{out} holds a generated set with {what}. Choose another folder, '
        'or replace it with overwrite=True (--overwrite).'
    )


def _layout(arguments: dict) -> Layout:
    task = TASKS[arguments['task']]
    return task.layout(task.classes)


def _paths(arguments: dict) -> Iterator[str]:
    layout = _layout(arguments)
    for picture in pictures(arguments['num'], arguments['val']):
        yield from layout.paths(picture)
    yield from layout.summary_paths()


def _missing(out: Path, arguments: dict) -> bool:
    return any(not (out / path).is_file() for path in _paths(arguments))


def _remove(out: Path, arguments: dict) -> None:
    for path in _paths(arguments):
        (out / path).unlink(missing_ok=True)


def _draw(out: Path, arguments: dict) -> None:
    task, layout = TASKS[arguments['task']], _layout(arguments)
    make_folder(out)
    _write_manifest(out, arguments | {'complete': False})
    places = list(pictures(arguments['num'], arguments['val']))
    for picture in track(places, 'drawing'):
        rng = np.random.default_rng([arguments['seed'], picture.index])
        scene = task.scene(rng, *arguments['size'], picture)
        contents = layout.encode(scene, picture)
        _write_all(out, layout.paths(picture), contents)
    _write_all(out, layout.summary_paths(), layout.summaries())
    _write_manifest(out, arguments | {'complete': True})


def _write_all(
    out: Path, paths: Iterable[str], contents: Iterable[bytes]
) -> None:
    for path, content in zip(paths, contents, strict=True):
        _write(out / path, content)


def _write_manifest(out: Path, content: dict) -> None:
    _write(out / MANIFEST, (json.dumps(content, indent=2) + '\n').encode())


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all, whoever else writes or reads the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f'.{path.name}.{os.getpid()}')
    with complete_file(path, own, durable=False) as part:
        part.write_bytes(content)
