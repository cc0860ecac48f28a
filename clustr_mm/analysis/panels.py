"""Pictures of segmentations: image, truth and prediction side by side."""

from collections.abc import Sequence
from pathlib import Path

import mmcv
import numpy as np

Palette = Sequence[tuple[int, int, int]]


def paint(labels: np.ndarray, palette: Palette) -> np.ndarray:
    """Colour a label map [H, W] of 1 + class; 0, no class, is black. BGR."""
    colours = np.array([(0, 0, 0), *palette], np.uint8)[:, ::-1]
    return colours[labels]


def panel(
    image: np.ndarray,
    truth: np.ndarray,
    prediction: np.ndarray,
    palette: Palette,
) -> np.ndarray:
    """Image, truth and prediction from left to right."""
    gap = np.full((image.shape[0], 4, 3), 255, np.uint8)
    painted = paint(truth, palette), paint(prediction, palette)
    return np.hstack([image, gap, painted[0], gap, painted[1]])


def draw_folder(data: Path, maps: Path, out: Path, palette: Palette) -> None:
    """Draw the validation set of a folder laid out as ADE20K.

    Args:
        data (Path): The data set.
        maps (Path): Predicted label maps, as `tools/test.py --out` writes.
        out (Path): Where the pictures go.
        palette (Palette): The classes' colours, RGB.
    """
    for path in sorted(maps.glob('*.png')):
        picture = panel(
            mmcv.imread(data / f'images/validation/{path.stem}.jpg'),
            mmcv.imread(
                data / f'annotations/validation/{path.name}', 'unchanged'
            ),
            mmcv.imread(path, 'unchanged'),
            palette,
        )
        mmcv.imwrite(picture, str(out / path.name))
