"""Drawing with soft edges for the picture and hard ones for the truth.

Everything is drawn `SUPER` times as large and shrunk at the end. Coordinates
are those of the final image and continuous: pixel i covers [i, i + 1].
"""

from collections.abc import Callable, Sequence

import cv2
import numpy as np
from numpy import ndarray

# Rows and columns of a part of a picture.
Window = tuple[slice, slice]
SUPER = 3  # odd, so that the centre of a pixel is the centre of a subpixel


class Canvas:
    """A picture and, for each of its subpixels, the mark of what is seen."""

    def __init__(self, height: int, width: int):
        self.height, self.width = height, width
        shape = SUPER * height, SUPER * width
        self.colour = np.zeros((*shape, 3), np.float32)  # BGR, 0 to 255
        self.marks = np.zeros(shape, np.int32)

    def paint(
        self,
        contours: Sequence[ndarray],
        colour: ndarray | Callable[[ndarray, ndarray], ndarray],
        mark: int,
    ) -> None:
        """Fill contours (even-odd), with one colour or a function of (x, y).

        Args:
            contours: list of float arrays [P, 2].
            colour: BGR, or a function that takes the coordinates x, y
                [h, w] and returns [h, w, 3].
            mark: what the filled subpixels are from now on.
        """
        window, inside = self._inside(contours)
        if not inside.any():
            return
        if callable(colour):
            colour = colour(*self.grid(window))[inside]
        self.colour[window][inside] = colour
        self.marks[window][inside] = mark

    def paint_where(
        self, inside: ndarray, colours: ndarray, mark: int
    ) -> None:
        """Paint the subpixels [3 H, 3 W] that are `inside`."""
        self.colour[inside] = colours[inside]
        self.marks[inside] = mark

    def shade(
        self, contours: Sequence[ndarray], blur: float, strength: float
    ) -> None:
        """Darken what lies under contours: a shadow with a soft edge."""
        window, inside = self._inside(contours, margin=2 * blur)
        if inside.any():
            alpha = cv2.GaussianBlur(
                inside.astype(np.float32), (0, 0), SUPER * blur
            )
            self.colour[window] *= 1 - strength * alpha[..., None]

    def grid(
        self, window: Window = (slice(None), slice(None))
    ) -> Sequence[ndarray]:
        """Coordinates x, y [h, w] of the subpixels of a window."""
        rows, cols = (
            (np.arange(n, dtype=np.float32)[part] + 0.5) / SUPER
            for n, part in zip(self.marks.shape, window, strict=True)
        )
        return np.meshgrid(cols, rows)

    def shrink(self) -> ndarray:
        """The picture at its final size, float32 [H, W, 3]."""
        size = self.width, self.height
        return cv2.resize(self.colour, size, interpolation=cv2.INTER_AREA)

    def _inside(
        self, contours: Sequence[ndarray], margin: float = 0
    ) -> tuple[Window, ndarray]:
        """The window around contours, and which of its subpixels [h, w]
        have their centres inside (even-odd).

        OpenCV's `fillPoly` would fatten everything by the width of a line.
        """
        contours = [SUPER * np.asarray(c, float) - 0.5 for c in contours]
        start = np.concatenate(contours)
        end = np.concatenate([np.roll(c, -1, axis=0) for c in contours])
        rows, cols = self.marks.shape
        low = np.floor(start.min(0) - SUPER * margin)
        high = np.ceil(start.max(0) + SUPER * margin) + 1
        x0, y0 = np.clip(low, 0, (cols, rows)).astype(int).tolist()
        x1, y1 = np.clip(high, 0, (cols, rows)).astype(int).tolist()
        # Where the outline crosses each row of subpixels: [edges, rows].
        y = np.arange(y0, y1)
        crosses = (start[:, 1:] <= y) != (end[:, 1:] <= y)
        edge, row = np.nonzero(crosses)
        part = (y[row] - start[edge, 1]) / (end[edge, 1] - start[edge, 1])
        x = start[edge, 0] + part * (end[edge, 0] - start[edge, 0])
        # Each crossing flips all that is to the right of it.
        width = x1 - x0 + 1
        column = np.clip(np.ceil(x) - x0, 0, width - 1).astype(int)
        flips = np.bincount(row * width + column, minlength=len(y) * width)
        inside = flips.reshape(len(y), width).cumsum(1)[:, :-1] % 2 > 0
        return (slice(y0, y1), slice(x0, x1)), inside


def centres(subpixels: ndarray) -> ndarray:
    """What is at the pixels' centres: [SUPER * H, SUPER * W] -> [H, W]."""
    return subpixels[SUPER // 2 :: SUPER, SUPER // 2 :: SUPER]


def ribbon(curve: ndarray, width: float) -> ndarray:
    """Contour [2 P, 2] around a curve [P, 2], `width` pixels wide."""
    along = np.gradient(curve, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True) + 1e-6
    side = along[:, ::-1] * (-0.5, 0.5) * width
    return np.concatenate([curve + side, (curve - side)[::-1]])
