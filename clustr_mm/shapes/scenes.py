"""Scenes: background, clutter and things in front of one another."""

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy import ndarray
from numpy.random import Generator

from .canvas import SUPER, Canvas, centres, ribbon
from .figures import PERSON, Figure
from .layout import Picture
from .things import STUFF, THINGS, TURN, Thing, mix, random_colours

CLUTTER = 0  # the mark of what belongs to no class


@dataclass
class Instance:
    """A thing in a scene.

    Attributes:
        name: its class.
        marks: the first and the last of the marks it is drawn with.
        contours: [P, 2] each: its outlines, hidden parts included.
        crowd: whether it stands for several that are not told apart.
        points: [133, 3], x, y and visibility, of a figure's key points.
    """

    name: str
    marks: tuple[int, int]
    contours: list[ndarray]
    crowd: bool = False
    points: ndarray | None = None


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

    image: ndarray
    marks: ndarray
    names: list[str]
    instances: list[Instance]
    quality: int

    def jpeg(self) -> bytes:
        quality = [cv2.IMWRITE_JPEG_QUALITY, self.quality]
        return cv2.imencode('.jpg', self.image, quality)[1].tobytes()

    def seen(self, instance: Instance) -> ndarray:
        """bool [3 H, 3 W]: the subpixels that show an instance."""
        first, last = instance.marks
        return (first <= self.marks) & (self.marks <= last)

    def labels(self, classes: Sequence[str]) -> ndarray:
        """uint8 [H, W]: 1 + the index in `classes`, and 0 elsewhere."""
        table = [0] + [
            1 + classes.index(n) if n in classes else 0 for n in self.names
        ]
        return np.uint8(table)[centres(self.marks)]


class Composer:
    """Draws a scene layer by layer; all that is random comes from `rng`."""

    def __init__(self, rng: Generator, height: int, width: int):
        self.rng = rng
        self.canvas = Canvas(height, width)
        self.unit = min(height, width)
        self.colours = random_colours(rng)
        angle = rng.uniform(0, TURN)
        self.light = np.array([np.cos(angle), np.sin(angle)])
        self.names, self.instances = [], []
        self._taken = []  # centre and radius of each thing
        self._fronts = []  # per figure: the mark that shows each key point

    def background(self, names: Sequence[str]) -> None:
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
            colours = self._pair(rng.uniform(0.35, 0.6))
            filled = mix(*colours, tone)
            canvas.paint_where(across > start, filled, len(self.names))

    def thing(self, name: str, radius: float) -> None:
        """Add a thing if there is a place for it."""
        centre = self._place(radius)
        if centre is not None:
            thing = self._thing(name, centre, radius)
            self._add(name, [thing])

    def crowd(self, name: str, radius: float, number: int = 9) -> None:
        """Add a heap of small things of one class, `radius` wide."""
        centre = self._place(radius)
        if centre is None:
            return
        rng = self.rng
        angles = TURN * (np.arange(number) / number + rng.random())
        away = radius * rng.uniform(0.3, 0.75, number)
        offsets = away * np.stack([np.cos(angles), np.sin(angles)])
        things = [
            self._thing(name, centre + o, 0.33 * radius) for o in offsets.T
        ]
        self._add(name, things, crowd=True)

    def figure(self, root: ndarray, height: float) -> None:
        """Add a person, over everything drawn so far."""
        figure = Figure(self.rng, root, height, self.colours)
        first, marks = len(self.names) + 1, {}
        for name, pieces in figure.parts:
            self.names.append(PERSON)
            marks[name] = len(self.names)
            for contour, colour in pieces:
                self.canvas.paint([contour], colour, marks[name])
        instance = Instance(
            name=PERSON,
            marks=(first, len(self.names)),
            contours=[c for _, pieces in figure.parts for c, _ in pieces],
            points=figure.points,
        )
        self.instances.append(instance)
        self._fronts.append(np.array([marks[n] for n in figure.fronts]))

    def strokes(self, number: int) -> None:
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

    def finish(self) -> Scene:
        """Light, noise and exposure; the scene."""
        rng, canvas = self.rng, self.canvas
        self._see_points()
        image = canvas.shrink()
        y, x = np.mgrid[: canvas.height, : canvas.width].astype(np.float32)
        facing = self.light[0] * (x / canvas.width - 0.5)
        facing += self.light[1] * (y / canvas.height - 0.5)
        light = rng.uniform(0.8, 1.15) * (1 + rng.uniform(0, 0.6) * facing)
        image *= np.float32(light)[..., None]
        noise = rng.standard_normal(image.shape, np.float32)
        image += rng.uniform(2, 6) * noise
        image = np.clip(image, 0, 255).astype(np.uint8)
        quality = int(rng.integers(75, 96))
        return Scene(image, canvas.marks, self.names, self.instances, quality)

    def _place(self, radius: float, tries: int = 20) -> ndarray | None:
        """A centre that leaves enough to be seen of what is there."""
        rng, size = self.rng, (self.canvas.width, self.canvas.height)
        for _ in range(tries):
            centre = rng.uniform(0.6 * radius, np.array(size) - 0.6 * radius)
            if all(
                np.linalg.norm(centre - other) > 0.65 * (radius + its_radius)
                for other, its_radius in self._taken
            ):
                self._taken.append((centre, radius))
                return centre
        return None

    def _thing(self, name: str, centre: ndarray, radius: float) -> Thing:
        colours = self._pair(self.rng.uniform(0.4, 0.7))
        return Thing(self.rng, name, centre, radius, self.light, *colours)

    def _add(
        self, name: str, things: Sequence[Thing], crowd: bool = False
    ) -> None:
        rng, canvas, unit = self.rng, self.canvas, self.unit
        self.names.append(name)
        mark = len(self.names)
        shift = -self.light * rng.uniform(0.03, 0.06) * unit
        strength = rng.uniform(0.3, 0.6)
        for thing in things:
            shadow = [c + shift for c in thing.contours]
            canvas.shade(shadow, 0.015 * unit, strength)
            canvas.paint(thing.contours, thing.colour, mark)
        contours = [c for thing in things for c in thing.contours]
        instance = Instance(name, (mark, mark), contours, crowd)
        self.instances.append(instance)

    def _pair(self, contrast: float) -> tuple[ndarray, ndarray]:
        """A colour's dark and bright version, or two unlike colours."""
        colour = next(self.colours)
        if self.rng.random() < 0.3:
            return colour * (1 - contrast), next(self.colours)
        bright = colour + (255 - colour) * contrast * 0.6
        return colour * (1 - contrast), bright

    def _see_points(self) -> None:
        """Set the visibility of key points: 2 seen, 1 hidden, 0 outside."""
        height, width = self.canvas.marks.shape
        figures = [i for i in self.instances if i.points is not None]
        for figure, front in zip(figures, self._fronts, strict=True):
            x, y = np.floor(SUPER * figure.points[:, :2].T).astype(int)
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            there = self.canvas.marks[
                y.clip(0, height - 1), x.clip(0, width - 1)
            ]
            visible = np.where(there > front, 1, 2) * inside
            figure.points[:, 2] = visible
            figure.points[~inside] = 0


def shuffled(rng: Generator, names: Sequence[str]) -> list[str]:
    return [names[i] for i in rng.permutation(len(names))]


def segmentation_scene(
    rng: Generator, height: int, width: int, picture: Picture
) -> Scene:
    """Two kinds of stuff and three to five things, each of another class."""
    composer = Composer(rng, height, width)
    composer.background(shuffled(rng, list(STUFF))[:2])
    for name in shuffled(rng, list(THINGS))[: rng.integers(3, 6)]:
        composer.thing(name, rng.uniform(0.17, 0.28) * composer.unit)
    composer.strokes(rng.integers(1, 5))
    return composer.finish()


def classification_scene(
    rng: Generator, height: int, width: int, picture: Picture
) -> Scene:
    """One large thing, each class in turn."""
    composer = Composer(rng, height, width)
    composer.background(shuffled(rng, list(STUFF))[: rng.integers(1, 3)])
    composer.strokes(rng.integers(1, 4))
    name = picture.choose(list(THINGS))
    composer.thing(name, rng.uniform(0.28, 0.45) * composer.unit)
    composer.strokes(rng.integers(0, 3))
    return composer.finish()


def detection_scene(
    rng: Generator, height: int, width: int, picture: Picture
) -> Scene:
    """One to five things, and now and then a crowd of small ones."""
    composer = Composer(rng, height, width)
    composer.background(shuffled(rng, list(STUFF))[: rng.integers(1, 3)])
    composer.strokes(rng.integers(1, 4))
    names = list(THINGS)
    for _ in range(rng.integers(1, 6)):
        radius = rng.uniform(0.12, 0.26) * composer.unit
        composer.thing(names[rng.integers(len(names))], radius)
    if rng.random() < 0.2:
        radius = rng.uniform(0.18, 0.25) * composer.unit
        composer.crowd(names[rng.integers(len(names))], radius)
    composer.strokes(rng.integers(0, 3))
    return composer.finish()


def pose_scene(
    rng: Generator, height: int, width: int, picture: Picture
) -> Scene:
    """One or two people in front of things."""
    composer = Composer(rng, height, width)
    composer.background(shuffled(rng, list(STUFF))[: rng.integers(1, 3)])
    for name in shuffled(rng, list(THINGS))[: rng.integers(0, 4)]:
        composer.thing(name, rng.uniform(0.08, 0.2) * composer.unit)
    composer.strokes(rng.integers(0, 4))
    number = rng.integers(1, 3)
    for place in rng.permutation(number):
        tall = rng.uniform(0.65, 0.9) * composer.unit
        x = width * (place + rng.uniform(0.35, 0.65)) / number
        y = rng.uniform(0.5, 0.58) * height
        composer.figure(np.array([x, y]), tall)
    return composer.finish()
