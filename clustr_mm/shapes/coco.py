"""COCO's JSON files: boxes, polygons, crowds."""

import json
from collections.abc import Sequence

import cv2
import numpy as np
from numpy import ndarray

from .canvas import SUPER, centres
from .layout import Layout, Picture
from .scenes import Instance, Scene

MAX_INSTANCES = 100  # in a picture; annotation ids are counted by it
MIN_AREA = 20  # pixels; what shows less of itself is not annotated


class Coco(Layout):
    """`train2017/*.jpg`, `val2017/*.jpg` and, under `annotations/`,
    `instances_train2017.json` and `instances_val2017.json`."""

    file_names = 'instances_{}2017.json'

    def __init__(self, classes: Sequence[str]):
        super().__init__(classes)
        self._images = {'train': [], 'val': []}
        self._annotations = {'train': [], 'val': []}

    def paths(self, picture: Picture) -> list[str]:
        return [f'{picture.split}2017/{self._name(picture)}']

    def encode(self, scene: Scene, picture: Picture) -> list[bytes]:
        height, width = scene.image.shape[:2]
        image_id = picture.index + 1
        self._images[picture.split].append(
            {
                'id': image_id,
                'file_name': self._name(picture),
                'height': height,
                'width': width,
            }
        )
        for number, instance in enumerate(scene.instances):
            seen = scene.seen(instance)
            known = instance.name in self.classes
            if not known or centres(seen).sum() < MIN_AREA:
                continue
            # Counted from 1 and by picture: a larger set keeps the ids of a
            # smaller one, and COCO's evaluation takes id 0 for "no match".
            ids = {
                'id': picture.index * MAX_INSTANCES + number + 1,
                'image_id': image_id,
                'category_id': self.classes.index(instance.name) + 1,
            }
            annotation = self.annotate(instance, seen)
            self._annotations[picture.split].append(ids | annotation)
        return [scene.jpeg()]

    def annotate(self, instance: Instance, seen: ndarray) -> dict:
        """What is said of an instance of which `seen` [3 H, 3 W] shows."""
        crowd = instance.crowd
        return {
            'iscrowd': int(crowd),
            'bbox': box(seen),
            'area': round(float(seen.sum()) / SUPER**2, 2),
            'segmentation': runs(centres(seen)) if crowd else polygons(seen),
        }

    def categories(self) -> list[dict]:
        return [
            {'id': i, 'name': name, 'supercategory': 'shape'}
            for i, name in enumerate(self.classes, 1)
        ]

    def summary_paths(self) -> list[str]:
        return [
            f'annotations/{self.file_names.format(split)}'
            for split in self._images
        ]

    def summaries(self) -> list[bytes]:
        return [
            json.dumps(
                {
                    'info': {'description': 'Generated shapes'},
                    'licenses': [],
                    'categories': self.categories(),
                    'images': self._images[split],
                    'annotations': self._annotations[split],
                }
            ).encode()
            for split in self._images
        ]

    @staticmethod
    def _name(picture: Picture) -> str:
        return f'{picture.index + 1:012d}.jpg'


def box(seen: ndarray) -> list[float]:
    """x, y, width, height of a mask of subpixels, in pixels."""
    return [round(n / SUPER, 2) for n in cv2.boundingRect(np.uint8(seen))]


def polygons(seen: ndarray) -> list[list[float]]:
    """COCO polygons [x0, y0, x1, y1, ...] around a mask of subpixels.

    A polygon of COCO has no holes: one that surrounds any is cut open
    towards each of them.
    """
    # OpenCV follows the centres of the outermost subpixels. One more to the
    # right and below, and these are the places of the edges themselves.
    grown = np.pad(np.uint8(seen), ((0, 1), (0, 1)))
    grown = cv2.dilate(grown, np.ones((2, 2), np.uint8), anchor=(1, 1))
    contours, tree = cv2.findContours(
        grown, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE
    )
    contours = [cv2.approxPolyDP(c, 0.75, True)[:, 0] for c in contours]
    big = [cv2.contourArea(c) >= SUPER**2 for c in contours]
    result = []
    for i, (_, _, hole, parent) in enumerate(tree[0]):
        if parent >= 0 or not big[i]:
            continue
        outer = contours[i]
        while hole >= 0:
            if big[hole]:
                outer = _cut_open(outer, contours[hole])
            hole = tree[0][hole][0]
        result.append((outer / SUPER).round(2).ravel().tolist())
    return result


def _cut_open(outer: ndarray, hole: ndarray) -> ndarray:
    """Join two contours along the shortest line between their corners."""
    apart = np.linalg.norm(outer[:, None] - hole[None], axis=2)
    i, j = np.unravel_index(apart.argmin(), apart.shape)
    around = np.roll(hole, -j, axis=0)
    return np.concatenate(
        [outer[: i + 1], around, around[:1], outer[i:]], axis=0
    )


def runs(mask: ndarray) -> dict:
    """COCO's uncompressed run lengths, column by column, 0s first."""
    flat = np.concatenate([[0], np.uint8(mask).ravel(order='F')])
    changes = np.flatnonzero(np.diff(flat))
    ends = np.concatenate([[0], changes, [flat.size - 1]])
    return {'counts': np.diff(ends).tolist(), 'size': list(mask.shape)}
