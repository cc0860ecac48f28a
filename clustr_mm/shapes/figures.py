"""Articulated people with the 133 key points of COCO-WholeBody.

The key points are 17 of the body, 6 of the feet, 68 of the face, 21 of the
left hand and 21 of the right hand. Left is the person's own left: +x, as the
person faces the viewer. y points down, and lengths are in units of the
person's height until `Figure` places them in a picture.
"""

from collections.abc import Iterator, Sequence

import cv2
import numpy as np
from numpy import ndarray
from numpy.random import Generator

from .canvas import ribbon
from .things import TURN

PERSON = 'person'
SIDES = {'left': 1, 'right': -1}
EDGE = 0.006  # width of the dark line around everything
SKINS = np.float32([(166, 199, 242), (115, 158, 217), (69, 102, 153)])
HEAD = np.array([0.085, 0.105])  # half its width and height
BOW = np.array([0, 0.6, 1, 0.6, 0])


class Figure:
    """A person in a pose drawn at random.

    Args:
        root: where the pelvis is, in pixels.
        height: in pixels.
        colours: iterator of colours, for hair and clothes.

    Attributes:
        points: [133, 3], x and y in pixels and room for a visibility.
        parts: what to paint, from back to front: (name, pieces), where a
            piece is a contour [P, 2] in pixels and its colour.
        fronts: for each key point the frontmost part that shows it.
    """

    def __init__(
        self,
        rng: Generator,
        root: ndarray,
        height: float,
        colours: Iterator[ndarray],
    ):
        self.rng = rng
        self._pieces = {}  # by part
        self._shirt, self._trousers, self._shoes = (
            next(colours) for _ in range(3)
        )
        self._hair = 0.5 * next(colours)
        self._skin = SKINS[rng.integers(len(SKINS))] * rng.uniform(0.85, 1.05)
        self._bare_arms, self._bare_legs = rng.random(2) < 0.5

        self._torso()
        legs = np.stack([self._leg(side) for side in SIDES])  # [2, 6, 2]
        arms = np.stack([self._arm(side) for side in SIDES])  # [2, 24, 2]
        features, face = self._head()
        points = [
            features,
            *arms[:, :3].swapaxes(0, 1),
            *legs[:, :3].swapaxes(0, 1),
            *legs[:, 3:],
            face,
            *arms[:, 3:],
        ]

        behind = [s for s in SIDES if rng.random() < 0.15]
        before = [s for s in SIDES if s not in behind]
        order = [f'{s} arm' for s in behind] + [f'{s} leg' for s in SIDES]
        order += ['torso', 'head'] + [f'{s} arm' for s in before]
        shoulders = ['torso' if s in behind else f'{s} arm' for s in SIDES]
        self.fronts = ['head'] * 5 + shoulders
        self.fronts += [f'{s} arm' for s in SIDES] * 2 + ['torso'] * 2
        self.fronts += [f'{s} leg' for s in SIDES] * 2
        self.fronts += [f'{s} leg' for s in SIDES for _ in range(3)]
        self.fronts += ['head'] * 68
        self.fronts += [f'{s} arm' for s in SIDES for _ in range(21)]

        c, s = _towards(rng.normal(0, 0.12))[::-1]
        turn = height * np.array([(c, -s), (s, c)])
        self.points = np.zeros((133, 3))
        self.points[:, :2] = root + np.concatenate(points) @ turn.T
        self.parts = [
            (part, [(root + p @ turn.T, c) for p, c in self._pieces[part]])
            for part in order
        ]

    def _draw(self, part: str, contour: ndarray, colour: ndarray) -> None:
        self._pieces.setdefault(part, []).append((contour, colour))

    def _limb(
        self,
        part: str,
        points: Sequence,
        radii: float | Sequence[float],
        colour: ndarray,
    ) -> None:
        """A shape stretched over circles, with a dark edge."""
        radii = np.broadcast_to(radii, len(points))
        self._draw(part, _hull(points, radii + EDGE), 0.35 * colour)
        self._draw(part, _hull(points, radii), colour)

    def _torso(self) -> None:
        joints = [(-0.1, -0.27), (0.1, -0.27), (-0.06, 0), (0.06, 0)]
        self._limb('torso', joints[2:], 0.05, self._trousers)
        radii = np.array([0.04, 0.04, 0.05, 0.05])
        joints = np.array(joints) - (0, 0.01)
        self._limb('torso', joints, radii, self._shirt)

    def _leg(self, side: str) -> ndarray:
        """Hip, knee, ankle, big toe, small toe, heel."""
        rng, sign, part = self.rng, SIDES[side], f'{side} leg'
        apart = rng.uniform(0, 0.5)
        hip = np.array([0.06 * sign, 0.02])
        knee = hip + 0.21 * _towards(sign * apart)
        shin = apart - rng.uniform(-0.1, 0.6)
        ankle = knee + 0.2 * _towards(sign * shin)
        foot = sign * rng.uniform(0.3, 1.1)
        along, across = _towards(foot), _towards(foot + sign * TURN / 4)
        big = ankle + 0.09 * along - 0.012 * across
        small = ankle + 0.08 * along + 0.028 * across
        heel = ankle - 0.025 * along + 0.005 * across
        colour = self._skin if self._bare_legs else self._trousers
        self._limb(part, [heel, big, small], 0.018, self._shoes)
        self._limb(part, [knee, ankle], (0.036, 0.025), colour)
        self._limb(part, [hip, knee], (0.052, 0.038), self._trousers)
        return np.stack([hip, knee, ankle, big, small, heel])

    def _arm(self, side: str) -> ndarray:
        """Shoulder, elbow, wrist and the 21 points of the hand."""
        rng, sign, part = self.rng, SIDES[side], f'{side} arm'
        raised = rng.uniform(0.1, 2.4)
        forearm = raised + rng.uniform(-1.2, 1.2)
        shoulder = np.array([0.115 * sign, -0.28])
        elbow = shoulder + 0.16 * _towards(sign * raised)
        wrist = elbow + 0.14 * _towards(sign * forearm)
        colour = self._skin if self._bare_arms else self._shirt
        self._limb(part, [elbow, wrist], (0.028, 0.02), colour)
        self._limb(part, [shoulder, elbow], (0.038, 0.03), self._shirt)
        hand = self._hand(part, sign, wrist, forearm + rng.normal(0, 0.2))
        return np.concatenate([[shoulder, elbow, wrist], hand])

    def _hand(
        self,
        part: str,
        sign: int,
        wrist: ndarray,
        angle: float,
        length: float = 0.12,
    ) -> ndarray:
        """The wrist, then four points of each finger from the thumb on."""
        rng = self.rng
        spread = rng.uniform(0.6, 1.3)
        along = _towards(sign * angle)
        inward = _towards(sign * (angle - TURN / 4))
        bases = [0.2 * along + 0.2 * inward]
        bases += [0.5 * along + (0.2 - 0.13 * k) * inward for k in range(4)]
        turns = spread * np.array([0.75, 0.25, 0.05, -0.15, -0.35])
        reach = np.array([0.45, 0.45, 0.5, 0.46, 0.36]) * rng.uniform(0.8, 1)
        points = [wrist]
        for base, turn, far in zip(bases, turns, reach, strict=True):
            finger = _towards(sign * (angle - turn))
            points += [
                wrist + length * (base + step * far * finger)
                for step in (0, 0.45, 0.75, 1)
            ]
        points = np.stack(points)
        self._limb(part, points[[0, 1, 5, 9, 13, 17]], 0.011, self._skin)
        for first in range(1, 21, 4):
            finger = points[first : first + 4]
            self._limb(part, finger[[0, 3]], (0.009, 0.007), self._skin)
        return points

    def _head(self) -> tuple[ndarray, ndarray]:
        """Nose, eyes and ears [5, 2]; the 68 points of the face."""
        rng, skin = self.rng, self._skin
        tilt, turned = rng.normal(0, 0.15), rng.uniform(-0.25, 0.25)
        c, s = np.cos(tilt), np.sin(tilt)
        centre = np.array([0, -0.33]) - (HEAD[1] - 0.01) * np.array([-s, c])
        matrix = np.array([(c, -s), (s, c)]) @ np.diag(HEAD)

        def place(local):
            return centre + np.asarray(local) @ matrix.T

        face = _face(rng.uniform(0, 0.12), rng.uniform(-0.05, 0.1))
        # Turning the head moves what is far from its rim.
        face[:, 0] += turned * np.clip(1 - face[:, 0] ** 2, 0.1, 1)
        points = place(face)
        ears = place([(1, -0.05), (-1, -0.05)])
        eyes = [points[42:48].mean(0), points[36:42].mean(0)]

        def draw(contour, colour):
            self._draw('head', contour, colour)

        self._limb('head', [(0, -0.3), centre], 0.032, 0.9 * skin)
        for ear in ears:
            self._limb('head', [ear], 0.018, skin)
        rim = _hull([(0, 0)], np.array([1]))
        draw(place(rim * (1 + EDGE / HEAD)), 0.35 * skin)
        draw(place(rim), skin)
        draw(place(_hairline()), self._hair)
        for first, eye in zip((42, 36), eyes, strict=True):
            draw(points[first : first + 6], np.float32([245, 245, 245]))
            draw(_hull([eye], np.array([0.009])), np.float32([40, 30, 30]))
        for brow in (points[17:22], points[22:27]):
            draw(ribbon(brow, 0.009), 0.5 * self._hair)
        for line in (points[27:31], points[31:36]):
            draw(ribbon(line, 0.006), 0.6 * skin)
        draw(points[48:60], skin * (0.55, 0.5, 0.9))
        draw(points[60:68], np.float32([40, 20, 60]))
        return np.stack([points[30], *eyes, *ears]), points


def _towards(angle: float) -> ndarray:
    """Unit vector: 0 is straight down, a quarter turn is +x."""
    return np.array([np.sin(angle), np.cos(angle)])


def _hull(points: Sequence, radii: ndarray) -> ndarray:
    """The contour of a skin stretched over circles."""
    angle = np.arange(24) * TURN / 24
    circle = np.stack([np.cos(angle), np.sin(angle)], 1)
    around = np.asarray(points)[:, None] + radii[:, None, None] * circle
    return cv2.convexHull(np.float32(around.reshape(-1, 2)))[:, 0]


def _hairline() -> ndarray:
    """On a head of half width and half height 1."""
    top = np.linspace(1.1, 1.9, 15) * np.pi
    top = 1.08 * np.stack([np.cos(top), np.sin(top)], 1)
    front = np.linspace(0.85, -0.85, 9)
    return np.concatenate([top, np.stack([front, -0.7 + 0.3 * front**2], 1)])


def _face(opening: float, smile: float) -> ndarray:
    """The 68 points on a head of half width and half height 1."""

    def line(x0, x1, y, number=5):
        x = np.linspace(x0, x1, number)
        return np.stack([x, np.broadcast_to(y, number)], 1)

    def eye(x):
        x = x + np.array([-0.2, -0.08, 0.08, 0.2, 0.08, -0.08])
        return np.stack([x, -0.1 + 0.1 * np.array([0, -1, -1, 0, 1, 1])], 1)

    def lip(half, number, y):  # corners go up with a smile
        points = line(-half, half, 0, number)
        points[:, 1] = 0.6 + y - smile * (points[:, 0] / half) ** 2
        return points

    rim = np.linspace(np.pi, 0, 17)
    upper = np.array([0, 0.05, 0.09, 0.07, 0.09, 0.05, 0])
    lower = (0.08 + opening) * np.array([0, 0.6, 0.95, 1, 0.95, 0.6, 0])
    return np.concatenate(
        [
            0.97 * np.stack([np.cos(rim), np.sin(rim)], 1),
            line(-0.62, -0.18, -0.33 - 0.08 * BOW),
            line(0.18, 0.62, -0.33 - 0.08 * BOW),
            [(0, y) for y in (-0.1, 0.02, 0.14, 0.26)],
            line(-0.16, 0.16, 0.3 + 0.04 * BOW),
            eye(-0.4),
            eye(0.4),
            lip(0.36, 7, -upper),
            lip(0.36, 7, lower)[-2:0:-1],
            lip(0.27, 5, -0.02 * BOW),
            lip(0.27, 5, opening * BOW)[-2:0:-1],
        ]
    )
