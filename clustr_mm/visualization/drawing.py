"""Tokens painted over a photo. Pictures are RGB, [H, W, 3] in uint8."""

from collections.abc import Sequence

import cv2
import mmcv
import numpy as np
import torch
import torch.nn.functional as F
from mmengine.visualization import Visualizer
from torch import Tensor

from .follow import Clustered, Pooled, Selected, Stage

MARK = (255, 40, 40)
# Of fused tokens, by the stage that fused them.
TINTS = np.array(
    [
        (240, 140, 40),
        (60, 160, 250),
        (200, 80, 220),
        (80, 200, 90),
        (230, 70, 90),
        (240, 210, 60),
    ],
    np.uint8,
)


class Canvas:
    """A photo, and where on it the tokens of the image lie.

    Args:
        photo (np.ndarray): The photo, of any resolution.
        seen (tuple[int, int]): Height and width of the image that the
            backbone saw, without padding.
        side (int): Longer side of the pictures.
    """

    def __init__(
        self,
        photo: np.ndarray,
        seen: tuple[int, int],
        side: int,
    ):
        self.seen = seen
        self.size = tuple(max(round(n * side / max(seen)), 1) for n in seen)
        self.photo = mmcv.imresize(
            photo, self.size[::-1], interpolation='area'
        )

    @property
    def grey(self) -> np.ndarray:
        """Brightness, [H, W, 1] in float32."""
        return mmcv.rgb2gray(self.photo, keepdim=True).astype(np.float32)

    def pixel(self, x: float, y: float) -> tuple[int, int]:
        """Row and column of a place from (0, 0), left and top, to (1, 1)."""
        height, width = self.size
        return min(int(y * height), height - 1), min(int(x * width), width - 1)

    def enlarge(self, values: Tensor, stride: int) -> np.ndarray:
        """The value of the token in which the middle of each pixel lies."""
        rows, columns = (
            ((np.arange(n) + 0.5) * seen / n / stride).astype(int)
            for n, seen in zip(self.size, self.seen)
        )
        return values.cpu().numpy()[rows[:, None], columns]

    def interpolate(self, fmap: Tensor, stride: int) -> Tensor:
        """A map [C, h, w], bilinear between the middles of its tokens."""
        # What was padded is cut off again.
        padded = [
            round(cells * stride * n / seen)
            for cells, n, seen in zip(fmap.shape[1:], self.size, self.seen)
        ]
        fmap = F.interpolate(fmap[None], padded, mode='bilinear')[0]
        return fmap[:, : self.size[0], : self.size[1]]


def palette(number: int) -> np.ndarray:
    """Colours [number, 3], the same ones whatever the number.

    They are drawn: in any regular series, tokens a row of the grid apart
    would be alike for some widths of the grid.
    """
    hue, saturation, value = np.random.default_rng(0).random((number, 3)).T
    hsv = 360 * hue, 0.3 + 0.7 * saturation, 0.5 + 0.5 * value
    hsv = np.stack(hsv, -1).astype(np.float32)
    rgb = mmcv.hsv2bgr(hsv[None])[0, :, ::-1]
    return np.round(255 * rgb).astype(np.uint8)


def draw(
    stages: Sequence[Stage],
    canvas: Canvas,
    point: tuple[float, float] | None = None,
) -> list[list[np.ndarray]]:
    """The pictures of each stage, from top to bottom.

    Args:
        stages (Sequence[Stage]): What to draw.
        canvas (Canvas): On what.
        point (tuple[float, float], optional): The place, from (0, 0) at the
            left and top to (1, 1), whose cluster is highlighted. By default
            one near the middle where clusters are large.
    """
    partitions = [
        canvas.enlarge(stage.labels, stage.stride)
        for stage in stages
        if isinstance(stage, Clustered)
    ]
    cross = (
        choose_cross(partitions, canvas.size)
        if point is None
        else canvas.pixel(*point)
    )
    return [_draw_stage(stage, canvas, cross) for stage in stages]


def _draw_stage(
    stage: Stage, canvas: Canvas, cross: tuple[int, int]
) -> list[np.ndarray]:
    if isinstance(stage, Selected):
        return [draw_selection(stage, canvas)]
    if isinstance(stage, Pooled):
        # A run whose weights diverge shall not end in its pictures.
        fmap = stage.fmap.float().cpu().nan_to_num(0.0, 0.0, 0.0)
        return [
            draw_components(fmap, stage.stride, canvas),
            draw_strength(fmap, stage.stride, canvas),
        ]
    labels = canvas.enlarge(stage.labels, stage.stride)
    return [
        draw_clusters(labels, canvas),
        draw_means(labels, canvas),
        draw_highlight(labels, canvas, cross),
    ]


def draw_clusters(
    labels: np.ndarray, canvas: Canvas, strength: float = 0.75
) -> np.ndarray:
    """Each cluster of ``labels`` [H, W] in a colour of its own."""
    # The last colour is of those that left, in whose place there is grey.
    colours = palette(labels.max() + 2)[labels]
    picture = _blend(canvas.grey, colours, strength)
    return _fade(picture, labels < 0, canvas)


def draw_means(labels: np.ndarray, canvas: Canvas) -> np.ndarray:
    """Each cluster in the mean colour of its pixels."""
    flat = labels.ravel() + 1
    counts = np.bincount(flat)[:, None]
    sums = [
        np.bincount(flat, c.ravel()) for c in np.moveaxis(canvas.photo, 2, 0)
    ]
    means = np.stack(sums, -1) / np.maximum(counts, 1)
    picture = np.round(means).astype(np.uint8)[labels + 1]
    return _fade(picture, labels < 0, canvas)


def draw_highlight(
    labels: np.ndarray, canvas: Canvas, cross: tuple[int, int]
) -> np.ndarray:
    """The cluster at a cross (row, column), the others in grey."""
    chosen = (labels == labels[cross]) & (labels >= 0)
    picture = np.where(chosen[..., None], canvas.photo, _grey(canvas, 0.45))
    edge = cv2.morphologyEx(
        chosen.astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)
    )
    picture[edge > 0] = MARK
    return cv2.drawMarker(
        picture, cross[::-1], MARK, cv2.MARKER_CROSS, 15, thickness=2
    )


def choose_cross(
    partitions: Sequence[np.ndarray], size: tuple[int, int]
) -> tuple[int, int]:
    """A pixel near the middle, in and among large clusters at most stages.

    Args:
        partitions (Sequence[np.ndarray]): Labels [H, W] of each stage.
        size (tuple[int, int]): Height and width.
    """
    rows, columns = np.indices(size)
    middle = (size[0] - 1) / 2, (size[1] - 1) / 2
    far = np.hypot(rows - middle[0], columns - middle[1]) / max(size)
    score = -0.5 * far
    window = 2 * (max(size) // 40) + 1
    for labels in partitions:
        sizes = np.bincount(labels.ravel() + 1)
        large = sizes >= sizes[sizes > 0].mean()
        large = large[labels + 1] & (labels >= 0)
        # Inside of a cluster rather than at its edge.
        inside = cv2.blur(large.astype(np.float64), (window, window))
        score += inside / len(partitions)
    row, column = divmod(int(score.argmax()), size[1])
    return row, column


def draw_selection(stage: Selected, canvas: Canvas) -> np.ndarray:
    """What stays in colour, what left in grey.

    What was fused is tinted, in one colour for each fused token.
    """
    fused = canvas.enlarge(stage.fused, stage.stride)
    left = canvas.enlarge(stage.left, stage.stride)
    tints = TINTS[fused % len(TINTS)]
    tinted = _blend(canvas.grey * 0.6, tints, 0.5)
    picture = np.where(fused[..., None] > 0, tinted, canvas.photo)
    return _fade(picture, left > 0, canvas)


def draw_components(fmap: Tensor, stride: int, canvas: Canvas) -> np.ndarray:
    """The three principal components as red, green and blue."""
    x = fmap.flatten(1).T  # [N, C]
    x = x - x.mean(0)
    # In ascending order of their variance.
    axes = torch.linalg.eigh(x.T @ x)[1].flip(1)[:, :3]
    # An axis has no direction: make its largest entry positive.
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    x = x @ (axes * largest.sign())
    low, high = x.quantile(0.02, 0), x.quantile(0.98, 0)
    x = ((x - low) / (high - low).clamp_min(1e-6)).clamp(0, 1)
    rgb = canvas.interpolate(x.T.unflatten(1, fmap.shape[1:]), stride)
    return (255 * rgb).round().byte().permute(1, 2, 0).numpy()


def draw_strength(fmap: Tensor, stride: int, canvas: Canvas) -> np.ndarray:
    """The mean over the channels, as MMEngine draws feature maps."""
    fmap = canvas.interpolate(fmap, stride)
    return Visualizer.draw_featmap(fmap, canvas.photo, 'squeeze_mean')


def _blend(
    below: np.ndarray, above: np.ndarray, strength: float
) -> np.ndarray:
    mixed = (1 - strength) * below + strength * above
    return np.round(mixed).astype(np.uint8)


def _grey(canvas: Canvas, brightness: float) -> np.ndarray:
    grey = np.round(canvas.grey * brightness).astype(np.uint8)
    return np.repeat(grey, 3, -1)


def _fade(
    picture: np.ndarray, where: np.ndarray, canvas: Canvas
) -> np.ndarray:
    """Grey in place of what left."""
    faded = 200 + _grey(canvas, 0.15)
    return np.where(where[..., None], faded, picture)
