"""The classes: what each looks like, whatever its colour.

Stuff is told by its texture, things by their outline and their pattern.
Colours mean nothing: they are drawn at random.
"""

import colorsys
from collections.abc import Callable, Iterator

import cv2
import numpy as np
from numpy import ndarray
from numpy.random import Generator

TURN = 2 * np.pi
# An outline, and the tone at the places x, y in a light.
Shape = tuple[list[ndarray], Callable[[ndarray, ndarray, ndarray], ndarray]]


def random_colours(rng: Generator) -> Iterator[ndarray]:
    """An endless row of BGR colours, each far in hue from the last ones."""
    hue = rng.random()
    while True:
        hue = (hue + 0.618 + rng.normal(0, 0.03)) % 1
        value = rng.uniform(0.45, 0.95)
        colour = colorsys.hsv_to_rgb(hue, rng.uniform(0.3, 0.8), value)
        yield 255 * np.float32(colour[::-1])


def mix(colour: ndarray, other: ndarray, amount: ndarray) -> ndarray:
    """From `colour` [3] to `other` [3] by `amount` [h, w] -> [h, w, 3]."""
    return colour + (other - colour) * np.float32(amount)[..., None]


def _rotated(x: ndarray, y: ndarray, angle: float) -> tuple[ndarray, ndarray]:
    c, s = np.cos(angle), np.sin(angle)
    return c * x + s * y, c * y - s * x


# Stuff: functions of the coordinates (in units of the picture's shorter
# side) that return a tone in [0, 1].


def bricks(rng: Generator, x: ndarray, y: ndarray) -> ndarray:
    u, v = _rotated(x, y, rng.uniform(-0.5, 0.5))
    rows = rng.uniform(7, 11)
    v = v * rows
    row = np.floor(v).astype(int)
    u = u * rows / rng.uniform(1.7, 2.3) + 0.5 * (row % 2)
    column = np.floor(u).astype(int)
    mortar = (v - row < 0.16) | (u - column < 0.09)
    tones = rng.uniform(0.45, 1, (64, 64)).astype(np.float32)  # of each brick
    return np.where(mortar, 0, tones[row % 64, column % 64])


def clouds(rng: Generator, x: ndarray, y: ndarray) -> ndarray:
    tone = np.zeros_like(x)
    for cells, weight in ((3, 0.7), (6, 0.3)):
        noise = rng.random((cells, cells)).astype(np.float32)
        size = x.shape[::-1]
        tone += weight * cv2.resize(noise, size, interpolation=cv2.INTER_CUBIC)
    return np.clip(tone, 0, 1)


def waves(rng: Generator, x: ndarray, y: ndarray) -> ndarray:
    u, v = _rotated(x, y, rng.uniform(0, TURN))
    crests, bends = rng.uniform(9, 13), rng.uniform(1.5, 3)
    bend = rng.uniform(0.2, 0.5) * np.sin(TURN * (bends * u + rng.random()))
    return 0.5 + 0.5 * np.sin(TURN * crests * v + TURN * bend)


# Things: outlines around the origin with a radius of about 1, and the tone
# in [0, 1] at a place (x, y) inside. `light` is the direction [2] that the
# light comes from, in the same coordinates.


def _circle(radius: float = 1.0, points: int = 48) -> ndarray:
    angle = np.arange(points) * TURN / points
    return radius * np.stack([np.cos(angle), np.sin(angle)], 1)


def ball(rng: Generator) -> Shape:
    def tone(x, y, light):
        height = np.sqrt(np.clip(1 - x * x - y * y, 0, 1))
        facing = 0.6 * (light[0] * x + light[1] * y) + 0.8 * height
        return np.clip(facing, 0, 1)

    return [_circle()], tone


def box(rng: Generator) -> Shape:
    half = np.array([1, rng.uniform(0.7, 1)]) * 0.9
    corners = half * [(-1, -1), (1, -1), (1, 1), (-1, 1)]
    inset = rng.uniform(0.55, 0.7)

    def tone(x, y, light):
        return np.maximum(abs(x / half[0]), abs(y / half[1])) > inset

    return [corners], tone


def cone(rng: Generator) -> Shape:
    half, bands = rng.uniform(0.95, 1.2), rng.uniform(3, 4)

    def tone(x, y, light):
        return (y * bands) % 1 > 0.5

    return [np.array([(0, -1.25), (half, 0.9), (-half, 0.9)])], tone


def ring(rng: Generator) -> Shape:
    hole, coils = rng.uniform(0.36, 0.48), int(rng.integers(9, 13))

    def tone(x, y, light):  # a rope's turns, brightest along the middle
        radius = np.hypot(x, y)
        slope = (2 * radius - 1 - hole) / (1 - hole)  # -1 to 1 across
        turns = np.arctan2(y, x) / TURN * coils + 0.5 * slope
        return np.clip(1 - 0.5 * slope**2, 0, 1) * (turns % 1 > 0.35)

    return [_circle(), _circle(hole)], tone


def star(rng: Generator) -> Shape:
    arms = int(rng.integers(5, 7))
    inner = rng.uniform(0.65, 0.75)
    angle = np.arange(2 * arms) * TURN / (2 * arms)
    radius = np.where(np.arange(2 * arms) % 2, inner, 1.3)
    outline = radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)

    def tone(x, y, light):  # each arm has a bright and a dark half
        return np.floor(np.arctan2(y, x) / TURN * 2 * arms) % 2

    return [outline], tone


STUFF = {f.__name__: f for f in (bricks, clouds, waves)}
THINGS = {f.__name__: f for f in (ball, box, cone, ring, star)}


class Thing:
    """One of `THINGS`, placed in a picture.

    Args:
        name: key of `THINGS`.
        centre, radius: in pixels.
        light: direction [2] in the image that the light comes from.
        colour, other: the two colours that its tones run between.
    """

    def __init__(
        self,
        rng: Generator,
        name: str,
        centre: ndarray,
        radius: float,
        light: ndarray,
        colour: ndarray,
        other: ndarray,
    ):
        self.name, self.centre, self.radius = name, centre, radius
        outline, self._tone = THINGS[name](rng)
        angle, squash = rng.uniform(0, TURN), rng.uniform(0.8, 1)
        turn = np.array(
            [(np.cos(angle), -np.sin(angle)), (np.sin(angle), np.cos(angle))]
        )
        # Local -> image, stretched along a direction of its own.
        self._matrix = radius * turn @ np.diag([1, squash])
        self._light = turn.T @ light
        self._colours = colour, other
        self.contours = [self.centre + c @ self._matrix.T for c in outline]

    def colour(self, x: ndarray, y: ndarray) -> ndarray:
        inverse = np.linalg.inv(self._matrix).astype(np.float32)
        x, y = x - self.centre[0], y - self.centre[1]
        local = [row[0] * x + row[1] * y for row in inverse]
        return mix(*self._colours, self._tone(*local, self._light))
