"""Scenes: background, clutter and things in front of one another."""

from dataclasses import dataclass

import cv2
import numpy as np

from .canvas import Canvas, centres, ribbon
from .shapes import STUFF, THINGS, TURN, Thing, mix, random_colours

CLUTTER = 0  # the mark of what belongs to no class


@dataclass
class Instance:
    """A thing in a scene; `mark` is its place in the depth order."""

    name: str
    mark: int
    contours: list  # [P, 2] each: the whole outline, hidden parts included


@dataclass
class Scene:
    """A picture and what is in it.

    Attributes:
        image: uint8 [H, W, 3], BGR.
        marks: int32 [3 H, 3 W]: which region or instance each subpixel
            shows; 0 is clutter, greater marks are in front.
        names: the class of each mark from 1 on.
        instances: the things, from back to front.
        quality: of the JPEG file.
    """

    image: np.ndarray
    marks: np.ndarray
    names: list
    instances: list
    quality: int

    def jpeg(self):
        quality = [cv2.IMWRITE_JPEG_QUALITY, self.quality]
        return cv2.imencode('.jpg', self.image, quality)[1].tobytes()

    def labels(self, classes):
        """uint8 [H, W]: 1 + the index in `classes`, and 0 elsewhere."""
        table = [0] + [
            1 + classes.index(n) if n in classes else 0 for n in self.names
        ]
        return np.uint8(table)[centres(self.marks)]


class Composer:
    """Draws a scene layer by layer; all that is random comes from `rng`."""

    def __init__(self, rng, height, width):
        self.rng = rng
        self.canvas = Canvas(height, width)
        self.unit = min(height, width)
        self.colours = random_colours(rng)
        angle = rng.uniform(0, TURN)
        self.light = np.array([np.cos(angle), np.sin(angle)])
        self.names, self.instances, self._placed = [], [], []

    def background(self, names):
        """Stuff side by side, parted by wavy lines."""
        rng, canvas, unit = self.rng, self.canvas, self.unit
        x, y = canvas.grid()
        angle = rng.uniform(0, TURN)
        across = x * np.cos(angle) + y * np.sin(angle)
        along = y * np.cos(angle) - x * np.sin(angle)
        bends = TURN * (rng.uniform(0.8, 2) * along / unit + rng.random())
        across += rng.uniform(0.02, 0.06) * unit * np.sin(bends)
        low, high = np.quantile(across, (0.02, 0.98))
        steps = np.linspace(low, high, len(names) + 1)[:-1]
        steps[1:] += rng.uniform(-0.1, 0.1, len(names) - 1) * (high - low)
        steps[0] = across.min() - 1
        for name, start in zip(names, steps, strict=True):
            tone = STUFF[name](rng, x / unit, y / unit)
            self.names.append(name)
            colours = self._pair(rng.uniform(0.25, 0.6))
            filled = mix(*colours, tone)
            canvas.paint_where(across - start, filled, len(self.names))

    def thing(self, name, radius, tries=20):
        """Add a thing where it leaves enough to be seen of the others."""
        rng, canvas, unit = self.rng, self.canvas, self.unit
        margin = 0.6 * radius
        for _ in range(tries):
            centre = rng.uniform(
                margin, (canvas.width - margin, canvas.height - margin)
            )
            apart = (
                np.linalg.norm(centre - o.centre) / (radius + o.radius)
                for o in self._placed
            )
            if min(apart, default=1) > 0.65:
                break
        else:
            return
        colours = self._pair(rng.uniform(0.3, 0.7))
        thing = Thing(rng, name, centre, radius, self.light, *colours)
        self._placed.append(thing)
        shift = -self.light * rng.uniform(0.03, 0.06) * unit
        shadow = [c + shift for c in thing.contours]
        canvas.shade(shadow, 0.015 * unit, rng.uniform(0.3, 0.6))
        self.names.append(name)
        mark = len(self.names)
        canvas.paint(thing.contours, thing.colour, mark)
        self.instances.append(Instance(name, mark, thing.contours))

    def strokes(self, number):
        """Clutter: curved lines across everything drawn so far."""
        rng = self.rng
        size = self.canvas.width, self.canvas.height
        t = np.linspace(0, 1, 40)[:, None]
        for _ in range(number):
            a, b, c = rng.uniform(-0.1, 1.1, (3, 2)) * size
            curve = (1 - t) ** 2 * a + 2 * t * (1 - t) * b + t**2 * c
            width = rng.uniform(0.008, 0.02) * self.unit
            contour = ribbon(curve, width)
            self.canvas.paint([contour], next(self.colours), CLUTTER)

    def finish(self):
        """Light, noise and exposure; the scene."""
        rng, canvas = self.rng, self.canvas
        image = canvas.shrink()
        y, x = np.mgrid[: canvas.height, : canvas.width].astype(np.float32)
        facing = self.light[0] * (x / canvas.width - 0.5)
        facing += self.light[1] * (y / canvas.height - 0.5)
        light = rng.uniform(0.8, 1.15) * (1 + rng.uniform(0, 0.6) * facing)
        image *= np.float32(light)[..., None]
        noise = rng.standard_normal(image.shape, np.float32)
        image += rng.uniform(2, 8) * noise
        image = np.clip(image, 0, 255).astype(np.uint8)
        quality = int(rng.integers(75, 96))
        return Scene(image, canvas.marks, self.names, self.instances, quality)

    def _pair(self, contrast):
        """A colour's dark and bright version, or two unlike colours."""
        colour = next(self.colours)
        if self.rng.random() < 0.3:
            return colour * (1 - contrast), next(self.colours)
        bright = colour + (255 - colour) * contrast * 0.6
        return colour * (1 - contrast), bright


def shuffled(rng, names):
    return [names[i] for i in rng.permutation(len(names))]


def segmentation_scene(rng, height, width, index):
    """Two kinds of stuff and three to five things, each of another class."""
    composer = Composer(rng, height, width)
    composer.background(shuffled(rng, list(STUFF))[:2])
    number = rng.integers(3, 6)
    for name in shuffled(rng, list(THINGS))[:number]:
        composer.thing(name, rng.uniform(0.16, 0.28) * composer.unit)
    composer.strokes(rng.integers(2, 6))
    return composer.finish()
