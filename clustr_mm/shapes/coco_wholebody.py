"""COCO-WholeBody's JSON files: people with 133 key points."""

import numpy as np
from numpy import ndarray

from .coco import Coco
from .scenes import Instance

SIDED = ['eye', 'ear', 'shoulder', 'elbow', 'wrist', 'hip', 'knee', 'ankle']
BODY = ['nose', *(f'{side}_{n}' for n in SIDED for side in ('left', 'right'))]
SKELETON = [
    *([16, 14], [14, 12], [17, 15], [15, 13], [12, 13], [6, 12], [7, 13]),
    *([6, 7], [6, 8], [7, 9], [8, 10], [9, 11], [2, 3], [1, 2], [1, 3]),
    *([2, 4], [3, 5], [4, 6], [5, 7]),
]
PARTS = {'face': slice(23, 91), 'lefthand': slice(91, 112)}
PARTS['righthand'] = slice(112, 133)
FOOT = slice(17, 23)


class CocoWholeBody(Coco):
    """Coco with `coco_wholebody_{train,val}_v1.0.json` under
    `annotations/`: body, foot, face and hand key points of each person, and
    boxes around the face and the hands."""

    file_names = 'coco_wholebody_{}_v1.0.json'

    def annotate(self, instance: Instance, seen: ndarray) -> dict:
        points = instance.points
        body, foot = points[:17], points[FOOT]
        result = super().annotate(instance, seen)
        result['num_keypoints'] = int((body[:, 2] > 0).sum())
        result['keypoints'] = _flat(body)
        result['foot_valid'] = bool((foot[:, 2] > 0).any())
        result['foot_kpts'] = _flat(foot)
        for part, places in PARTS.items():
            its_points = points[places]
            # A face or a hand that hardly shows is not annotated at all.
            valid = bool((its_points[:, 2] == 2).mean() >= 0.5)
            its_points = its_points * valid
            result[f'{part}_valid'] = valid
            result[f'{part}_box'] = _around(its_points)
            result[f'{part}_kpts'] = _flat(its_points)
        return result

    def categories(self) -> list[dict]:
        (person,) = super().categories()
        person['supercategory'] = 'person'
        return [person | {'keypoints': BODY, 'skeleton': SKELETON}]


def _flat(points: ndarray) -> list[float]:
    """[x, y, visibility] of each point in turn."""
    return [
        number
        for x, y, visible in points.tolist()
        for number in (round(x, 2), round(y, 2), int(visible))
    ]


def _around(points: ndarray) -> list[float]:
    """The box (x, y, width, height) around the points that are labelled."""
    labelled = points[points[:, 2] > 0, :2]
    if not len(labelled):
        return [0.0] * 4
    low, high = labelled.min(0), labelled.max(0)
    margin = 0.05 * (high - low)
    box = np.concatenate([low - margin, high - low + 2 * margin])
    return box.round(2).tolist()
