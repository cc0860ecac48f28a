"""Pictures of tokens say what the backbones report."""

from types import SimpleNamespace
from unittest import mock
from urllib.parse import quote

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope

from clustr_mm.analysis.models import build_model, read_config
from clustr_mm.backbones import clustr
from clustr_mm.errors import UserError
from clustr_mm.registry import MODELS
from clustr_mm.shapes import make_shapes
from clustr_mm.visualization import TokenVisualizationHook, draw_tokens
from clustr_mm.visualization.drawing import (
    Canvas,
    choose_cross,
    draw,
    draw_clusters,
    draw_components,
    draw_highlight,
    draw_means,
    draw_selection,
    palette,
)
from clustr_mm.visualization.explorer import Subject
from clustr_mm.visualization.follow import Clustered, find_backbone, follow
from clustr_mm.visualization.gallery import (
    Gallery,
    find_images,
    read_image,
    scaled_size,
)
from clustr_mm.visualization.picture import preprocess
from tests.runs import ROOT, run_tool
from tests.test_training import small
from tests.tiny_models import TRAINED, clustr_arch

# 48 x 80 pixels are 6 x 10 patches.
SIZE = (48, 80)
VIT = dict(TRAINED, img_size=SIZE)
BACKBONES = {
    'ClusTR': dict(arch=clustr_arch((1, 2, 1, 1), 16)),
    'HVT': dict(VIT, num_stages=2),
    'TokenPoolingDeiT': dict(VIT, keep=[60, 40, 20, 0]),
    'EViT': VIT,
    'DynamicViT': VIT,
}


def colourful(size=SIZE):
    """A picture without a grey pixel."""
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 90, (*size, 3), np.uint8)
    picture[..., 0] += 120
    return picture


def as_batch(picture):
    return torch.from_numpy(picture).permute(2, 0, 1)[None] / 64 - 2


def is_grey(picture):
    return (picture == picture[..., :1]).all(-1)


def cells(values, side, size=SIZE):
    """The value of each pixel, by repeating those of its patch."""
    values = np.asarray(values).repeat(side, 0).repeat(side, 1)
    return values[: size[0], : size[1]]


class Model(torch.nn.Module):
    """A model of which nothing but the backbone and the input matters."""

    def __init__(self, backbone):
        super().__init__()
        self.data_preprocessor = lambda data, training: {
            'inputs': [img / 64 - 2.0 for img in data['inputs']]
        }
        self.backbone = backbone
        self.eval()


def model(name, **changes):
    cfg = dict(type=name, **{**BACKBONES[name], **changes})
    return Model(MODELS.build(cfg))


# What is drawn.
@pytest.mark.parametrize('size', [SIZE, (45, 78)])
def test_pixels_belong_to_the_cluster_that_clustr_found(size):
    backbone, calls = model('ClusTR').backbone, []

    def record(*args, **kwargs):
        calls.append(found := clustr_density_peaks(*args, **kwargs))
        return found

    clustr_density_peaks = clustr.density_peaks
    photo = colourful(size)
    with mock.patch.object(clustr, 'density_peaks', record):
        stages = follow(backbone, as_batch(photo))
    # Of the second stage's two blocks the last one's; the last is dense.
    expected = [*calls[0], *calls[2], *calls[3]]
    strides = [4, 4, 8, 8, 16]
    assert [stage.stride for stage in stages] == strides
    canvas = Canvas(photo, size, max(size))
    for stage, clusters, stride in zip(stages, expected, strides):
        grid = [-(-side // stride) for side in size]
        labels = cells(clusters.labels[0].view(grid), stride, size)
        picture = draw_clusters(
            canvas.enlarge(stage.labels, stride), canvas, strength=1
        )
        # Each cluster has its colour, and nothing else has it.
        colours = palette(grid[0] * grid[1])
        first = clusters.labels[0].tolist().index
        for label in np.unique(labels):
            inside = (picture == colours[first(label)]).all(-1)
            assert (inside == (labels == label)).all()
        assert stage.title.split(': ')[1] == (
            f'{clusters.num_clusters} of {grid[0] * grid[1]} tokens'
        )


def test_colours_differ():
    # As many as there are patches, or clusters at 1333 x 800.
    colours = palette(4320)
    assert len(np.unique(colours, axis=0)) > 4300
    assert (palette(100) == colours[:100]).all()
    # Neighbours in a row, and in a column for any width of the grid.
    colours = colours.astype(float)
    for width in range(1, 90):
        distance = np.linalg.norm(colours[width:] - colours[:-width], axis=1)
        assert (distance < 40).mean() < 0.05


def test_means_are_those_of_each_cluster():
    photo = colourful()
    labels = np.random.default_rng(1).integers(0, 7, SIZE)
    picture = draw_means(labels, Canvas(photo, SIZE, 80))
    for i in range(7):
        mean = photo[labels == i].mean(0)
        assert np.abs(picture[labels == i] - mean).max() <= 0.5


def test_highlight_shows_one_cluster():
    photo = colourful()
    labels = cells(np.arange(60).reshape(6, 10) // 20, 8)
    canvas = Canvas(photo, SIZE, 80)
    picture = draw_highlight(labels, canvas, canvas.pixel(0, 1))
    inner = np.s_[36:, 30:]  # neither the edge nor the cross
    assert (picture[inner] == photo[inner]).all()
    assert is_grey(picture[:30]).all()


def test_cross_is_inside_of_large_clusters():
    labels = np.arange(60).reshape(6, 10)
    labels[:, 7:] = 60
    others = np.arange(60).reshape(6, 10)
    others[3:] = 60
    partitions = [cells(x, 8) for x in (labels, others)]
    row, column = choose_cross(partitions, SIZE)
    # In both, in neither's edge, and no farther than it has to be.
    assert 24 < row < 30
    assert 56 < column < 62
    # Without any it is in the middle, and what left counts for nothing.
    for nothing in ([], [cells(np.full((6, 10), -1), 8)]):
        row, column = choose_cross(nothing, SIZE)
        assert (row, column) == (23, 39)


@pytest.mark.parametrize(
    ('name', 'changes'), [('EViT', dict(fuse=False)), ('DynamicViT', {})]
)
@pytest.mark.parametrize('size', [SIZE, (43, 77)])
def test_what_left_is_grey(name, changes, size):
    backbone, photo = model(name, **changes).backbone, colourful(size)
    canvas = Canvas(photo, size, max(size))
    with torch.no_grad():
        outs, trail = backbone.trace(as_batch(photo))
    stages = follow(backbone, as_batch(photo))
    assert len(stages) == 3
    # Token number n was patch ids[n] before anything left.
    ids = torch.arange(60)
    for stage, step in zip(stages, trail.steps):
        ids = ids[step[0].argsort()][: _num_tokens(stage)]
        here = torch.zeros(60, dtype=torch.bool)
        here[ids] = True
        picture = draw_selection(stage, canvas)
        left = ~cells(here.view(6, 10), 8, size)
        assert (is_grey(picture) == left).all()
        assert (picture[~left] == photo[~left]).all()
    # After the last one, by the numbers that the trail ends with.
    left = trail.owner.view(6, 10) >= _num_tokens(stages[-1])
    assert (is_grey(picture) == cells(left, 8, size)).all()


def _num_tokens(stage):
    return int(stage.title.split(': ')[1].split()[0])


def test_fused_patches_are_tinted():
    backbone, photo = model('EViT').backbone, colourful()
    stages = follow(backbone, as_batch(photo))
    with torch.no_grad():
        x, trail = backbone.run(as_batch(photo), track=True)
    sizes = trail.sizes(x[:, 1:])[0]
    # 60 patches; 42 kept and 1 fused; 31 and 1; 23 and 1.
    assert [_num_tokens(stage) for stage in stages] == [43, 32, 24]
    assert (stages[0].fused > 0).sum() == 18
    assert not any(stage.left.any() for stage in stages)
    picture = draw(stages, Canvas(photo, SIZE, 80))[-1][0]
    touched = (picture != photo).any(-1)[::8, ::8]
    alone = sizes[trail.owner[0]] == 1
    fused = trail.owner[0] == 23
    assert touched.ravel()[fused].all()
    assert not touched.ravel()[alone & ~fused].any()
    assert touched.ravel()[~alone].all()


def test_clusters_of_token_pooling_follow_the_trail():
    backbone = model('TokenPoolingDeiT').backbone
    img = as_batch(colourful())
    stages = follow(backbone, img)
    assert all(isinstance(stage, Clustered) for stage in stages)
    assert [_num_tokens(stage) for stage in stages] == [40, 20, 0]
    with torch.no_grad():
        trail = backbone.trace(img)[1]
    first = trail.steps[0][0]
    for stage, owner in zip(stages, (first, trail.steps[1][0][first])):
        owner = owner.tolist()
        labels = [owner.index(cluster) for cluster in owner]
        assert stage.labels.flatten().tolist() == labels
    assert (stages[2].labels == -1).all()
    # In the end all have left.
    canvas = Canvas(colourful(), SIZE, 80)
    assert is_grey(draw(stages, canvas)[-1][0]).all()


def test_maps_of_hvt_are_those_of_its_tokens():
    # Pools after blocks 0 and 2, so that stages end with blocks 1 and 3.
    backbone = model(
        'HVT',
        out_type='featmap',
        out_indices=(1, 3),
        final_norm=False,
        detail=False,
    ).backbone
    img = as_batch(colourful())
    stages = follow(backbone, img)
    with torch.no_grad():
        outs = backbone(img)
    assert len(stages) == len(outs) == 2
    for stage, out in zip(stages, outs):
        assert torch.allclose(stage.fmap, out[0], atol=1e-6)


def test_maps_are_interpolated_to_the_image():
    canvas = Canvas(colourful((43, 77)), (43, 77), 77)
    column = torch.arange(10.0).expand(1, 6, 10) * 8 + 3.5
    fmap = canvas.interpolate(column, 8)[0]
    assert fmap.shape == (43, 77)
    # A ramp over the patches is one over the pixels.
    assert torch.allclose(fmap[:, 4:73], torch.arange(4.0, 73).expand(43, -1))


def test_components_are_those_of_largest_variance():
    rows, columns = torch.meshgrid(
        torch.arange(6.0), torch.arange(10.0), indexing='ij'
    )
    # Red grows to the right, green downwards, and blue stays as it is.
    fmap = torch.stack([torch.zeros(6, 10), rows, 9 * columns, rows * 0 + 7])
    picture = draw_components(fmap, 8, Canvas(colourful(), SIZE, 80))
    red, green, blue = np.moveaxis(picture.astype(int), 2, 0)
    assert (red == red[:1]).all()
    assert (green == green[:, :1]).all()
    assert (np.diff(red[0]) >= 0).all()
    assert (np.diff(green[:, 0]) >= 0).all()
    assert red.min() == green.min() == 0
    assert red.max() == green.max() == 255
    assert (blue == blue[0, 0]).all()


@pytest.mark.parametrize('side', [20, 80, 333])
def test_canvas_of_another_resolution(side):
    canvas = Canvas(colourful((200, 310)), SIZE, side)
    labels = canvas.enlarge(torch.arange(60).view(6, 10), 8)
    assert labels.shape == canvas.photo.shape[:2] == canvas.size
    for y, x in np.ndindex(labels.shape):
        row = int((y + 0.5) / canvas.size[0] * 6)
        column = int((x + 0.5) / canvas.size[1] * 10)
        assert labels[y, x] == row * 10 + column


# Any image, any model.
@pytest.mark.parametrize('name', BACKBONES)
@pytest.mark.parametrize('size', [SIZE, (1, 1), (7, 130)])
def test_sheet_of_any_image(name, size):
    sheet, _ = draw_tokens(model(name), colourful(size), ['title'], side=60)
    assert sheet.dtype == np.uint8
    assert sheet.shape[2] == 3
    assert (sheet < 128).any()


def test_sheet_where_all_tokens_stay():
    _, stages = draw_tokens(model('DynamicViT').train(), colourful(), side=60)
    assert stages == []


@pytest.mark.parametrize('name', BACKBONES)
def test_sheet_of_weights_that_diverged(name):
    broken = model(name)
    with torch.no_grad():
        for param in broken.parameters():
            param.fill_(torch.nan)
    draw_tokens(broken, colourful(), side=60)


def test_picture_is_a_part_of_the_sheet():
    photo = colourful()
    sheet, stages = draw_tokens(model('EViT'), photo, side=80)
    canvas = Canvas(mmcv.bgr2rgb(photo), SIZE, 80)
    for picture in (canvas.photo, *draw(stages, canvas)[0]):
        # Its first row is somewhere in the sheet, and the rest below.
        windows = np.lib.stride_tricks.sliding_window_view(sheet, (48, 80, 3))
        corners = (sheet[: -47 or None, :-79] == picture[0, 0]).all(-1)
        places = np.argwhere(corners)
        assert any((windows[y, x, 0] == picture).all() for y, x in places)


CONFIGS = {
    'mmpretrain': 'hvt/hvt_s1_imagenet.py',
    'mmseg': 'clustr/upernet_clustr_s_ade20k.py',
    'mmdet': 'evit/mask_rcnn_evit_s_k07_coco.py',
    'mmpose': 'dynamicvit/pose_dynamicvit_s_k07_wholebody.py',
}


@pytest.mark.parametrize('scope', CONFIGS)
def test_images_are_normalised_as_the_config_says(scope):
    pytest.importorskip(scope)
    cfg = Config.fromfile(ROOT / 'configs' / CONFIGS[scope])
    init_default_scope(scope)
    cfg = dict(cfg.model.data_preprocessor)
    cfg.pop('batch_augments', None)
    cfg.setdefault('type', 'ClsDataPreprocessor')
    cfg.update(mean=[10, 20, 30], std=[1, 2, 4])
    holder = SimpleNamespace(data_preprocessor=MODELS.build(cfg))
    picture = colourful()
    img = preprocess(holder, picture)[0, :, : SIZE[0], : SIZE[1]]
    rgb = picture[..., ::-1].astype(np.float32)
    expected = (rgb - [10, 20, 30]) / [1, 2, 4]
    assert np.allclose(img.permute(1, 2, 0), expected)


def test_backbone_is_found():
    ours = model('EViT')
    assert find_backbone(torch.nn.Sequential(ours)) is ours.backbone
    with pytest.raises(UserError, match='no backbone of clustr_mm: Linear'):
        find_backbone(torch.nn.Linear(1, 1))
    with pytest.raises(UserError, match='HVT of this model .* no tokens'):
        find_backbone(model('HVT', num_stages=0))
    with pytest.raises(UserError, match='ClusTR of this model .* no tokens'):
        find_backbone(model('ClusTR', attention='sra'))


# The hook.
def hooked_runner(tmp_path, epochs=3, val_interval=1, **hook):
    pytest.importorskip('mmpretrain')
    return small.runner(
        small.classifier('DynamicViT'),
        tmp_path,
        train_cfg=dict(
            by_epoch=True, max_epochs=epochs, val_interval=val_interval
        ),
        hooks=[dict(type='TokenVisualizationHook', side=64, **hook)],
        val_dataloader=dict(
            batch_size=3,
            num_workers=0,
            dataset=small.Pictures(),
            sampler=dict(type='DefaultSampler', shuffle=False),
            collate_fn=dict(type='default_collate'),
        ),
        val_cfg={},
        val_evaluator=dict(type='Accuracy'),
        visualizer=dict(
            type='UniversalVisualizer',
            vis_backends=[
                dict(type='LocalVisBackend'),
                dict(type='TensorboardVisBackend'),
            ],
        ),
    )


def test_hook_draws_to_files_and_tensorboard(tmp_path):
    accumulator = pytest.importorskip(
        'tensorboard.backend.event_processing.event_accumulator'
    )
    runner = hooked_runner(tmp_path, interval=2, num_images=4)
    runner.train()
    runner.visualizer.close()
    # The second validation and the last; four images of two batches.
    files = {path.name: path for path in tmp_path.rglob('tokens_*.png')}
    assert set(files) == {
        f'tokens_{i}_{epoch}.png' for i in range(4) for epoch in (2, 3)
    }
    events = [str(p.parent) for p in tmp_path.rglob('events.out.*')]
    events = accumulator.EventAccumulator(events[0]).Reload()
    assert events.Tags()['images'] == [f'tokens_{i}' for i in range(4)]
    for tag in events.Tags()['images']:
        assert [event.step for event in events.Images(tag)] == [2, 3]
    # Both hold the same picture, with the photo of the data set in it.
    encoded = events.Images('tokens_3')[1].encoded_image_string
    sheet = mmcv.imread(files['tokens_3_3.png'])
    assert (mmcv.imfrombytes(encoded) == sheet).all()
    photo = runner.val_dataloader.dataset.images[3].permute(1, 2, 0).numpy()
    photo = mmcv.imresize(photo, (64, 64), interpolation='area')
    windows = np.lib.stride_tricks.sliding_window_view(sheet, photo.shape)
    corners = (sheet[:-63, :-63] == photo[0, 0]).all(-1)
    assert any(
        (windows[y, x, 0] == photo).all() for y, x in np.argwhere(corners)
    )


def test_hook_counts_validations(tmp_path):
    # After epochs 2, 4 and 5: the second one and the last.
    options = dict(epochs=5, val_interval=2, interval=2, num_images=1)
    hooked_runner(tmp_path, **options).train()
    names = {path.name for path in tmp_path.rglob('tokens_*.png')}
    assert names == {'tokens_0_4.png', 'tokens_0_5.png'}


def test_hook_draws_when_only_validating(tmp_path):
    runner = hooked_runner(tmp_path, interval=5, num_images=1)
    runner.val()
    assert [p.name for p in tmp_path.rglob('*.png')] == ['tokens_0_0.png']


def test_hook_refuses():
    with pytest.raises(ValueError, match='1 or more'):
        TokenVisualizationHook(interval=0)
    runner = SimpleNamespace(model=torch.nn.Linear(1, 1))
    with pytest.raises(UserError, match='no backbone'):
        TokenVisualizationHook().before_run(runner)


# Folders of images.
@pytest.fixture
def folder(tmp_path):
    root = tmp_path / 'in'
    for name in ('a.png', 'sub/a.jpg', 'ü <b>.png'):
        mmcv.imwrite(colourful(), str(root / name))
    (root / 'notes.txt').write_text('no image')
    return root


def gallery(out, *names, **options):
    subjects = [
        Subject(model(name), f'{name}.py', 'random', SIZE)
        for name in names or ['EViT']
    ]
    return Gallery(subjects, str(out), side=40, **options)


def test_gallery(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('TTY_COMPATIBLE', '1')
    show = gallery(tmp_path / 'out')
    show.add_all(find_images(str(folder)))
    page = (tmp_path / 'out/index.html').read_text(encoding='utf-8')
    assert len(show.pictures) == 3
    assert page.count('class="picture"') == 3
    assert all(f'"{quote(name)}"' in page for name in show.pictures)
    assert '<b>' not in page
    assert '3 of 3 images' in page
    for name in show.pictures:
        assert mmcv.imread(tmp_path / 'out' / name) is not None
    assert '3/3' in capsys.readouterr().err


def test_gallery_of_several_models(folder, tmp_path):
    """Also of two with configs of one name."""
    show = gallery(tmp_path / 'out', 'EViT', 'HVT', 'EViT')
    show.add_all(find_images(str(folder / 'sub')))
    page = (tmp_path / 'out/index.html').read_text(encoding='utf-8')
    assert page.count('class="picture"') == 1
    assert len(set(show.pictures)) == 3
    for name in show.pictures:
        assert f'"{name}"' in page
        assert mmcv.imread(tmp_path / 'out' / name) is not None


def test_gallery_leaves_out_what_is_no_image(folder, tmp_path):
    (folder / 'broken.jpg').write_bytes(b'\xff\xd8\xff nothing')
    show = gallery(tmp_path / 'out')
    with pytest.raises(UserError, match='drew 3 of 4 images.*broken.jpg'):
        show.add_all(find_images(str(folder)))
    assert '3 of 4 images' in (tmp_path / 'out/index.html').read_text()


def test_interrupted_gallery_keeps_what_is_done(folder, tmp_path):
    show = gallery(tmp_path / 'out')
    paths = find_images(str(folder))

    def stop_at_second(path):
        if path == paths[1]:
            raise KeyboardInterrupt
        return read_image(path)

    where = 'clustr_mm.visualization.gallery.read_image'
    with (
        mock.patch(where, stop_at_second),
        pytest.raises(KeyboardInterrupt),
    ):
        show.add_all(paths)
    page = (tmp_path / 'out/index.html').read_text()
    assert '1 of 3 images' in page
    assert (tmp_path / 'out' / show.pictures[0]).is_file()


def test_sizes():
    assert scaled_size((100, 400), (224, 224), 0) == (100, 400)
    assert scaled_size((100, 400), (224, 224), 50) == (50, 200)
    assert scaled_size((100, 400), (224, 224), None) == (112, 448)
    assert scaled_size((1, 9999), (20, 20), None) == (1, 2000)


def test_what_cannot_be_drawn(tmp_path):
    with pytest.raises(UserError, match='no image or folder'):
        find_images(str(tmp_path / 'missing'))
    with pytest.raises(UserError, match='no images in'):
        find_images(str(tmp_path))
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match='cannot write'):
        gallery(tmp_path / 'file')


# The tool, as a user runs it.
def test_tool(tmp_path):
    pytest.importorskip('mmpretrain')
    data = tmp_path / 'data'
    make_shapes('classification', data, num=10, size=64, val=0.5)
    config = ROOT / 'configs/quickstart/token_pooling_shapes.py'
    args = ('visualize_tokens.py', data, config)
    log = run_tool(*args, '--out', 'out', '--side', 96, cwd=tmp_path)
    assert log.strip().endswith('out/index.html')
    page = (tmp_path / 'out/index.html').read_text()
    assert page.count('class="picture"') == 10
    assert page.count('"weights":"random"') == 10

    # Two configs beside each other, one with weights.
    weights = tmp_path / 'weights.pth'
    model = build_model(read_config(str(config)))
    torch.save(dict(state_dict=model.state_dict()), weights)
    other = ROOT / 'configs/quickstart/hvt_shapes.py'
    image = find_images(str(data))[0]
    tool, _, *both = (*args, weights, other)
    run_tool(tool, image, *both, '--out', 'two', cwd=tmp_path)
    page = (tmp_path / 'two/index.html').read_text()
    assert page.count('class="picture"') == 1
    assert page.count('"weights":"weights.pth"') == 1
    assert page.count('"weights":"random"') == 1
    log = run_tool(
        *args, weights, weights, '--out', 'no', cwd=tmp_path, ok=False
    )
    assert 'weights.pth follows a checkpoint, but is no config' in log

    broken = tmp_path / 'broken.pth'
    broken.write_bytes(b'PK\x03\x04 cut')
    log = run_tool(*args, broken, '--out', 'no', cwd=tmp_path, ok=False)
    assert 'Traceback' not in log
    assert 'error: ' in log
    assert 'broken.pth' in log
