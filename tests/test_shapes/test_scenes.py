"""What a scene says about itself is what it shows."""

import cv2
import numpy as np
import pytest
from matplotlib.path import Path

from clustr_mm.shapes import TASKS
from clustr_mm.shapes.canvas import SUPER, Canvas, centres
from clustr_mm.shapes.coco import box, polygons, runs
from clustr_mm.shapes.layout import Picture


def scenes(task, number=12, size=(96, 128)):
    for index in range(number):
        rng = np.random.default_rng([7, index])
        picture = Picture(index, 'train', index)
        yield TASKS[task].scene(rng, *size, picture)


def filled(contours, shape, scale=1):
    """The pixels (`scale` to one) whose centres lie in contours, even-odd."""
    y, x = (np.mgrid[: scale * shape[0], : scale * shape[1]] + 0.5) / scale
    points = np.stack([x.ravel(), y.ravel()], 1)
    inside = [Path(c).contains_points(points) for c in contours]
    return np.logical_xor.reduce(inside).reshape(x.shape)


def same_but_for_the_rim(mask, other, width):
    """Whether masks differ only within `width` of the first one's rim."""
    kernel = np.ones((2 * width + 1, 2 * width + 1), np.uint8)
    rim = cv2.dilate(np.uint8(mask), kernel) - cv2.erode(
        np.uint8(mask), kernel, borderValue=0
    )
    return not (mask ^ other)[rim == 0].any()


def test_marks_sit_where_the_colour_is():
    canvas = Canvas(20, 30)
    square = np.array([(4, 5), (12, 5), (12, 9), (4, 9)], float)
    canvas.paint([square], (255, 0, 0), mark=3)
    expected = np.zeros((20, 30), bool)
    expected[5:9, 4:12] = True
    assert ((centres(canvas.marks) == 3) == expected).all()
    blue = canvas.shrink()[..., 0]
    assert (blue[expected] == 255).all()
    assert (blue[~expected] == 0).all()


def test_painting_is_even_odd_and_by_subpixel_centres():
    rng = np.random.default_rng(0)
    for _ in range(20):
        contours = [rng.uniform(-5, 35, (9, 2)), rng.uniform(0, 25, (5, 2))]
        canvas = Canvas(20, 30)
        canvas.paint(contours, (1, 2, 3), mark=1)
        expected = filled(contours, (20, 30), SUPER)
        assert (canvas.marks == expected).all()
        assert ((canvas.colour == (1, 2, 3)).all(-1) == expected).all()


def test_soft_edges():
    """A pixel takes the colour by the part of it that is covered."""
    canvas = Canvas(1, 2)
    square = np.array([(0, 0), (4 / 3, 0), (4 / 3, 1), (0, 1)])
    canvas.paint([square], (0, 90, 0), mark=1)
    assert canvas.shrink()[0, :, 1] == pytest.approx([90, 30])
    assert centres(canvas.marks).tolist() == [[1, 0]]


def test_painting_outside_the_canvas_changes_nothing():
    canvas = Canvas(20, 30)
    square = np.array([(40, 5), (52, 5), (52, 9), (40, 9)], float)
    canvas.paint([square], (255, 0, 0), mark=3)
    canvas.shade([square], 1, 0.5)
    assert not canvas.marks.any()
    assert not canvas.colour.any()


@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize('size', [(32, 32), (32, 150), (150, 32)])
def test_any_size(task, size):
    for scene in scenes(task, 2, size):
        assert scene.image.shape == (*size, 3)
        assert scene.image.std() > 5
        assert centres(scene.marks).shape == size


@pytest.mark.parametrize('task', ['segmentation', 'detection'])
def test_labels_agree_with_outlines(task):
    """Every instance shows inside its outline, hidden only by what is in
    front of it or by clutter."""
    classes = TASKS['segmentation'].classes
    for scene in scenes(task):
        labels = scene.labels(classes)
        marks = centres(scene.marks)
        for instance in scene.instances:
            if instance.crowd:
                continue  # its members overlap: not an even-odd outline
            seen = centres(scene.seen(instance))
            inside = filled(instance.contours, labels.shape)
            uncovered = (marks <= instance.marks[1]) & (marks != 0)
            assert (seen == (inside & uncovered)).all()
            assert (labels[seen] == 1 + classes.index(instance.name)).all()


@pytest.fixture(scope='module')
def forty():
    return list(scenes('segmentation', 40))


def test_every_class_covers_a_decent_area(forty):
    classes = TASKS['segmentation'].classes
    counts = sum(
        np.bincount(s.labels(classes).ravel(), minlength=9) for s in forty
    )
    shares = counts / counts.sum()
    assert shares.size == 9
    assert 0.005 < shares[0] < 0.08  # clutter
    assert (shares[1:] > 0.03).all()


def test_colour_does_not_tell_the_class(forty):
    """The mean colour of a class varies as much as between classes."""
    classes = TASKS['segmentation'].classes
    means = {i: [] for i in range(1, 9)}
    for scene in forty:
        labels = scene.labels(classes)
        for i in np.unique(labels[labels > 0]):
            means[i].append(scene.image[labels == i].mean(0))
    within = np.mean([np.var(m, axis=0).mean() for m in means.values()])
    between = np.var([np.mean(m, axis=0) for m in means.values()], axis=0)
    assert between.mean() < 0.2 * within


@pytest.mark.parametrize('task', ['detection', 'pose'])
def test_polygons_boxes_and_runs_describe_the_mask(task):
    for scene in scenes(task):
        for instance in scene.instances:
            seen = scene.seen(instance)
            if centres(seen).sum() < 20:
                continue
            contours = [np.reshape(p, (-1, 2)) for p in polygons(seen)]
            shape = scene.image.shape[:2]
            drawn = filled(contours, shape, SUPER)
            assert same_but_for_the_rim(seen, drawn, 2)
            assert drawn.sum() == pytest.approx(seen.sum(), rel=0.1)
            x, y, w, h = box(seen)
            rows, cols = np.nonzero(seen)
            assert np.allclose(
                np.array([x, y, x + w, y + h]) * SUPER,
                [cols.min(), rows.min(), cols.max() + 1, rows.max() + 1],
                atol=0.05,
            )
            mask = centres(seen)
            counts = runs(mask)['counts']
            values = np.arange(len(counts)) % 2
            flat = np.repeat(values, counts).reshape(mask.shape[::-1]).T
            assert (flat == mask).all()


def test_runs_of_full_and_empty_masks():
    assert runs(np.zeros((2, 3), bool)) == {'counts': [6], 'size': [2, 3]}
    assert runs(np.ones((2, 3), bool)) == {'counts': [0, 6], 'size': [2, 3]}


def test_a_polygon_of_a_ring_keeps_its_hole():
    y, x = np.mgrid[:90, :90]
    away = np.hypot(x - 45, y - 45)
    ring = (away < 40) & (away > 20)
    (polygon,) = polygons(ring)
    contour = np.reshape(polygon, (-1, 2))
    assert same_but_for_the_rim(ring, filled([contour], (30, 30), SUPER), 1)


def test_key_points_lie_on_the_figure():
    shown = []
    for scene in scenes('pose', 12, (192, 192)):
        figures = [i for i in scene.instances if i.points is not None]
        assert 1 <= len(figures) <= 2
        for figure in figures:
            x, y, visible = figure.points.T
            shown.append(visible)
            assert (figure.points[visible == 0] == 0).all()
            inside = (x >= 0) & (x < 192) & (y >= 0) & (y < 192)
            assert inside.all()
            # A figure and its neighbourhood, for points on its rim.
            seen = np.uint8(scene.seen(figure))
            near = cv2.dilate(seen, np.ones((5, 5), np.uint8))
            clear = visible == 2
            rows, cols = (SUPER * np.stack([y, x])[:, clear]).astype(int)
            assert near[rows, cols].mean() > 0.99
    shown = np.concatenate(shown)
    assert {0, 1, 2} == set(shown)
    assert (shown == 2).mean() > 0.8


def test_left_is_the_persons_own_left():
    """Who stands upright and faces us has the left side at greater x."""
    for scene in scenes('pose', 8, (160, 160)):
        for figure in scene.instances:
            if figure.points is None:
                continue
            x, _, visible = figure.points.T
            for left, right in ((5, 6), (11, 12), (1, 2), (68, 59), (39, 23)):
                if visible[left] and visible[right]:
                    assert x[left] > x[right]
