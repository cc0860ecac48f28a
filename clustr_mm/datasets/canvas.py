"""Drawing with soft edges for the picture and hard ones for the truth.

Everything is drawn `SUPER` times as large and shrunk at the end. Coordinates
are those of the final image and continuous: pixel i covers [i, i + 1].
"""

import cv2
import numpy as np

SUPER = 3  # odd, so that the centre of a pixel is the centre of a subpixel
FRACTION = 4  # bits after the point in OpenCV's polygon coordinates


class Canvas:
    """A picture and, for each of its subpixels, the mark of what is seen."""

    def __init__(self, height, width):
        self.height, self.width = height, width
        shape = SUPER * height, SUPER * width
        self.colour = np.zeros((*shape, 3), np.float32)  # BGR, 0 to 255
        self.marks = np.zeros(shape, np.int32)

    def paint(self, contours, colour, mark=None):
        """Fill contours (even-odd), with one colour or a function of (x, y).

        Args:
            contours: list of float arrays [P, 2].
            colour: BGR, or a function that takes the coordinates x, y
                [h, w] and returns [h, w, 3].
            mark: what the filled subpixels are from now on; None leaves
                them what they were.
        """
        window, alpha = self._coverage(contours)
        if alpha is None:
            return
        if callable(colour):
            colour = colour(*self.grid(window))
        self._blend(window, alpha, colour)
        if mark is not None:
            self.marks[window][alpha >= 0.5] = mark

    def paint_where(self, depth, colour, mark):
        """Fill where `depth` (in pixels, full canvas) is positive."""
        alpha = np.clip(depth * SUPER + 0.5, 0, 1)
        window = slice(None), slice(None)
        self._blend(window, alpha, colour)
        self.marks[alpha >= 0.5] = mark

    def shade(self, contours, blur, strength):
        """Darken what lies under contours: a shadow with a soft edge."""
        window, alpha = self._coverage(contours, margin=2 * blur)
        if alpha is None:
            return
        alpha = cv2.GaussianBlur(alpha, (0, 0), SUPER * blur)
        self.colour[window] *= 1 - strength * alpha[..., None]

    def grid(self, window=(slice(None), slice(None))):
        """Coordinates x, y [h, w] of the subpixels of a window."""
        rows, cols = (
            (np.arange(n, dtype=np.float32)[part] + 0.5) / SUPER
            for n, part in zip(self.marks.shape, window, strict=True)
        )
        return np.meshgrid(cols, rows)

    def shrink(self):
        """The picture at its final size, float32 [H, W, 3]."""
        size = self.width, self.height
        return cv2.resize(self.colour, size, interpolation=cv2.INTER_AREA)

    def _blend(self, window, alpha, colour):
        below = self.colour[window]
        below += alpha[..., None] * (np.float32(colour) - below)

    def _coverage(self, contours, margin=0):
        """The window around contours, and how much of each subpixel they
        cover (None if they lie outside the canvas)."""
        points = np.concatenate(contours)
        low = np.floor(SUPER * (points.min(0) - margin)).astype(int) - 1
        high = np.ceil(SUPER * (points.max(0) + margin)).astype(int) + 2
        rows, cols = self.marks.shape
        x0, y0 = np.clip(low, 0, (cols, rows)).tolist()
        x1, y1 = np.clip(high, 0, (cols, rows)).tolist()
        window = slice(y0, y1), slice(x0, x1)
        if x0 >= x1 or y0 >= y1:
            return window, None
        # OpenCV's integer coordinates are the centres of subpixels.
        shift = SUPER * np.float32((0, 0)) - np.float32((x0, y0)) - 0.5
        fixed = [
            np.round((SUPER * c + shift) * (1 << FRACTION)).astype(np.int32)
            for c in contours
        ]
        alpha = np.zeros((y1 - y0, x1 - x0), np.uint8)
        cv2.fillPoly(alpha, fixed, 255, cv2.LINE_AA, FRACTION)
        return window, alpha.astype(np.float32) / 255


def centres(subpixels):
    """What is at the pixels' centres: [SUPER * H, SUPER * W] -> [H, W]."""
    return subpixels[SUPER // 2 :: SUPER, SUPER // 2 :: SUPER]


def ribbon(curve, width):
    """Contour [2 P, 2] around a curve [P, 2], `width` pixels wide."""
    along = np.gradient(curve, axis=0)
    along /= np.linalg.norm(along, axis=1, keepdims=True) + 1e-6
    side = along[:, ::-1] * (-0.5, 0.5) * width
    return np.concatenate([curve + side, (curve - side)[::-1]])
