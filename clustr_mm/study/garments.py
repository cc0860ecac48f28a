"""Garments on photographs: real pictures, with a truth for every pixel.

One to six garments, coloured, turned and scaled, lie over one another on an
enlarged photograph. The grey values of a garment tell where it is.
"""

from dataclasses import dataclass

import cv2
import numpy as np

MOST = 6
# Of the picture's side.
SMALLEST, LARGEST = 0.2, 0.6
# An instance that shows less of itself is not annotated, in pixels.
LEAST_AREA = 24
# From this grey value on it is cloth; closed where the cloth is as dark.
_CLOTH = 24


@dataclass(frozen=True)
class Scene:
    """A picture in BGR and what is where.

    Attributes:
        image: [S, S, 3].
        owner: the instance that each pixel shows, -1 for none, [S, S].
        labels: the class of each instance.
    """

    image: np.ndarray
    owner: np.ndarray
    labels: list[int]

    def semantic(self) -> np.ndarray:
        """0 for the photograph, then the classes, [S, S]."""
        return np.array([-1, *self.labels])[self.owner + 1] + 1


def compose(
    rng: np.random.Generator,
    size: int,
    photograph: np.ndarray,
    garments: np.ndarray,
    labels: np.ndarray,
) -> Scene:
    """A scene of some of the garments.

    Args:
        rng: draws how many, which, where, how large, how turned and how
            coloured.
        size: of the scene's side.
        photograph: RGB [h, w, 3].
        garments: grey [N, h, w].
        labels: their classes [N].
    """
    image = cv2.resize(
        photograph[..., ::-1], (size, size), interpolation=cv2.INTER_CUBIC
    ).astype(np.float32)
    owner = np.full((size, size), -1)
    chosen = rng.integers(len(labels), size=rng.integers(1, MOST + 1))
    for number, index in enumerate(chosen):
        cloth, inside = _worn(rng, size, garments[index])
        alpha = inside[..., None]
        image = image * (1 - alpha) + cloth * alpha
        owner[inside > 0.5] = number
    return Scene(
        image.clip(0, 255).astype(np.uint8), owner, labels[chosen].tolist()
    )


def _worn(
    rng: np.random.Generator, size: int, garment: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """A garment's colours [S, S, 3] in its place, and how much it covers."""
    side = len(garment)
    factor = rng.uniform(SMALLEST, LARGEST) * size / side
    turn = cv2.getRotationMatrix2D(
        ((side - 1) / 2, (side - 1) / 2), rng.uniform(-45, 45), factor
    )
    # Its middle anywhere that leaves a good part in the picture.
    turn[:, 2] += rng.uniform(0.1, 0.9, 2) * size - (side - 1) / 2
    if rng.random() < 0.5:
        garment = garment[:, ::-1]
    grey, inside = (
        cv2.warpAffine(plane, turn, (size, size), flags=cv2.INTER_LINEAR)
        for plane in (garment.astype(np.float32), silhouette(garment))
    )
    colour = rng.uniform(0.2, 1.0, 3)
    # Dark cloth stays visible.
    cloth = (64 + 0.75 * grey)[..., None] * colour
    return cloth, inside


def silhouette(garment: np.ndarray) -> np.ndarray:
    """Where a garment is, 0 or 1 [h, w]: its outline and all within."""
    cloth = np.uint8(garment >= _CLOTH)
    cloth = cv2.morphologyEx(cloth, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
    contours, _ = cv2.findContours(
        cloth, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE
    )
    filled = np.zeros_like(cloth)
    cv2.drawContours(filled, contours, -1, 1, cv2.FILLED)
    return filled.astype(np.float32)
