"""From the sources to what the toolboxes' own data set classes read."""

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import cv2
import numpy as np

from clustr_mm.errors import UserError
from clustr_mm.outputs import make_folder
from clustr_mm.progress import track
from clustr_mm.shapes.coco import runs
from . import sources
from .garments import LEAST_AREA, compose
from .sources import GARMENTS, PHOTOGRAPHS, Aerial

# Written last: a folder that has it is whole.
MANIFEST = 'study.json'
# The places that tree crowns are tested at; all others are for training.
TEST_PLACES = ('2019_YELL_2_541000',)
TILE = 400
# Of a crown that the edge of a tile cuts, so much must be left.
LEAST_PART = 0.3
# Raise it when the same arguments no longer give the same files.
_VERSION = 1


def prepare(
    name: str,
    source: Path,
    out: Path,
    num_train: int = 4000,
    num_test: int = 500,
) -> Path:
    """Leave one of `DATA` in ``out``; at once if it is there.

    Args:
        name (str): Of the data.
        source (Path): Folder of the files named in `sources`.
        out (Path): Folder.
        num_train, num_test (int): Scenes of garments.
    """
    wanted = dict(version=_VERSION, name=name)
    if name.startswith('garments'):
        wanted.update(num_train=num_train, num_test=num_test)
    manifest = out / MANIFEST
    if manifest.is_file():
        found = json.loads(manifest.read_text())
        if found == wanted:
            return out
        raise UserError(
            f'{out} holds {found}, but {wanted} was asked for: remove that '
            'folder or give another'
        )
    make_folder(out)
    DATA[name](Path(source), out, wanted)
    manifest.write_text(json.dumps(wanted) + '\n')
    return out


def _cifar10(source: Path, out: Path, wanted: dict) -> None:
    """A folder for each class, and lists of files and labels in the order
    of the source, so that the first so many are of all classes."""
    for split, pictures in sources.photographs(source).items():
        for name in PHOTOGRAPHS:
            (out / split / name).mkdir(parents=True, exist_ok=True)
        pairs = list(zip(pictures.images, pictures.labels, strict=True))
        lines = []
        for i, (image, label) in enumerate(track(pairs, split)):
            path = f'{split}/{PHOTOGRAPHS[label]}/{i:05d}.png'
            cv2.imwrite(str(out / path), image[..., ::-1])
            lines.append(f'{path} {label}')
        (out / f'{split}.txt').write_text('\n'.join(lines) + '\n')


def _garments(size: int) -> Callable:
    return lambda source, out, wanted: _draw_garments(
        size, source, out, wanted
    )


def _draw_garments(size: int, source: Path, out: Path, wanted: dict) -> None:
    """Scenes with label maps (MMSegmentation) and COCO's JSON (MMDetection).

    A scene depends on its number alone, and training and test scenes share
    neither photographs nor garments.
    """
    photographs = sources.photographs(source)
    garments = sources.garments(source)
    for number, split in enumerate(('train', 'test')):
        folders = [out / kind / split for kind in ('images', 'labels')]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        images, annotations = [], []
        for i in track(range(wanted[f'num_{split}']), split):
            rng = np.random.default_rng([number, i])
            scene = compose(
                rng,
                size,
                photographs[split].images[
                    rng.integers(len(photographs[split]))
                ],
                garments[split].images,
                garments[split].labels,
            )
            file_name = f'{i:05d}.png'
            cv2.imwrite(str(folders[0] / file_name), scene.image)
            cv2.imwrite(str(folders[1] / file_name), scene.semantic())
            images.append(_image(i + 1, file_name, scene.image))
            for k, label in enumerate(scene.labels):
                mask = scene.owner == k
                if mask.sum() >= LEAST_AREA:
                    annotations.append(
                        _annotation(
                            annotations, i + 1, label, _box(mask), mask
                        )
                    )
        _write_coco(out, split, GARMENTS, images, annotations)


def _crowns(source: Path, out: Path, wanted: dict) -> None:
    """Tiles of the aerial photographs, split by place."""
    aerials = sources.tree_crowns(source)
    for split in ('train', 'test'):
        chosen = [a for a in aerials if _is_test(a) == (split == 'test')]
        if not chosen:
            raise UserError(
                f'{source / "tree_crowns"} has no photograph of a place for '
                f'{split}: those of {TEST_PLACES} are for testing, all '
                'others for training'
            )
        folder = out / 'images' / split
        folder.mkdir(parents=True, exist_ok=True)
        images, annotations = [], []
        for number, (tile, boxes) in enumerate(
            tile for aerial in chosen for tile in tiles(aerial)
        ):
            file_name = f'{number:04d}.png'
            cv2.imwrite(str(folder / file_name), tile)
            images.append(_image(number + 1, file_name, tile))
            for box in boxes.tolist():
                annotations.append(
                    _annotation(annotations, number + 1, 0, box)
                )
        _write_coco(out, split, ['tree'], images, annotations)


def _is_test(aerial: Aerial) -> bool:
    return aerial.name.startswith(TEST_PLACES)


def tiles(aerial: Aerial) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tiles that cover a photograph once, with the boxes in each.

    The last ones of a row and a column are as large as what is left.
    """
    height, width = aerial.image.shape[:2]
    for top in range(0, height, TILE):
        for left in range(0, width, TILE):
            tile = aerial.image[top : top + TILE, left : left + TILE]
            boxes = _cut(aerial.boxes, left, top, *tile.shape[1::-1])
            # A strip too narrow for a crown, or a place without any.
            if min(tile.shape[:2]) >= TILE // 4 and len(boxes):
                yield tile, boxes


def _cut(
    boxes: np.ndarray, left: int, top: int, width: int, height: int
) -> np.ndarray:
    """Boxes [x, y, w, h] in a window, of those that show enough there."""
    low = (boxes[:, :2] - (left, top)).clip(0)
    high = (boxes[:, :2] + boxes[:, 2:] - (left, top)).clip(
        None, (width, height)
    )
    size = (high - low).clip(0)
    shown = size.prod(1) >= LEAST_PART * boxes[:, 2:].prod(1)
    shown &= size.min(1) >= 1
    return np.concatenate([low, size], 1)[shown]


def _image(number: int, file_name: str, image: np.ndarray) -> dict:
    height, width = image.shape[:2]
    return dict(id=number, file_name=file_name, height=height, width=width)


def _annotation(
    others: list,
    image_id: int,
    label: int,
    box: list,
    mask: np.ndarray | None = None,
) -> dict:
    # Counted from 1: COCO's evaluation takes id 0 for "no match".
    found = dict(
        id=len(others) + 1,
        image_id=image_id,
        category_id=label + 1,
        iscrowd=0,
        bbox=box,
        area=float(box[2] * box[3] if mask is None else mask.sum()),
    )
    if mask is not None:
        found['segmentation'] = runs(mask)
    return found


def _box(mask: np.ndarray) -> list[int]:
    return list(cv2.boundingRect(np.uint8(mask)))


def _write_coco(
    out: Path,
    split: str,
    classes: Iterable[str],
    images: list[dict],
    annotations: list[dict],
) -> None:
    categories = [dict(id=i, name=name) for i, name in enumerate(classes, 1)]
    (out / f'{split}.json').write_text(
        json.dumps(
            dict(images=images, annotations=annotations, categories=categories)
        )
    )


DATA = {
    'cifar10': _cifar10,
    'garments_128': _garments(128),
    'garments_256': _garments(256),
    'crowns': _crowns,
}
