"""One's own folder of images: how docs/data.md says to train on it."""

import re

import cv2
import numpy as np
import pytest

from clustr_mm.errors import UserError
from clustr_mm.runs import class_checks, launch
from clustr_mm.shapes.folders import split_folder
from tests import small_training
from tests.runs import ROOT, run_tool
from tests.tiny_models import vit_arch

pytest.importorskip('mmpretrain')
CLASSES = ['ball', 'box', 'stripes']


def draw(folder, names=CLASSES, num=6):
    """Pictures in the colour of their class, named alike in each."""
    for label, name in enumerate(names):
        (folder / name).mkdir(parents=True)
        for i in range(num):
            image = np.full((32 + i, 40, 3), 20 * i, np.uint8)
            image[..., label % 3] = 255
            cv2.imwrite(str(folder / name / f'{i}.png'), image)
    return folder


def documented():
    """The config, and what goes to its end for lists of pictures."""
    page = (ROOT / 'docs/data.md').read_text()
    config, ending, _ = re.findall(r'^```python\n(.*?)^```', page, re.M | re.S)
    return config.replace("'configs/", f"'{ROOT}/configs/"), ending


ARCH = vit_arch(24, 12, 2, mlp_ratio=1, patch_size=56)
SMALL = f"""
_base_ = 'photos.py'
model = dict(
    backbone=dict(arch=dict({ARCH}, _delete_=True)),
    head=dict(in_channels=24),
)
train_cfg = dict(max_epochs=1)
train_dataloader = dict(batch_size=4, num_workers=0)
val_dataloader = dict(num_workers=0)
test_dataloader = val_dataloader
"""


@pytest.mark.parametrize(
    'is_divided', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_documented_config(tmp_path, is_divided):
    config, ending = documented()
    if is_divided:
        draw(tmp_path / 'photos/train')
        draw(tmp_path / 'photos/val', num=2)
        ending = ''
    else:
        draw(tmp_path / 'photos')
        log = run_tool('split_folder.py', 'photos', cwd=tmp_path)
        assert f'classes = {CLASSES}' in log
    (tmp_path / 'photos.py').write_text(config + ending)
    (tmp_path / 'small.py').write_text(SMALL)
    log = run_tool(
        *('train.py', 'small.py', '--cfg-options', 'load_from=None'),
        cwd=tmp_path,
    )
    num_iters = 5 if is_divided else 4  # of 18 pictures, or of 15
    assert f'Epoch(train) [1][{num_iters}/{num_iters}]' in log
    assert re.search(r'Epoch\(val\) \[1\]\[1/1\] +accuracy/top1: \d', log)
    assert (tmp_path / 'work_dirs/small/epoch_1.pth').exists()


def test_lists(tmp_path):
    draw(tmp_path, ['b', 'a'], num=10)
    (tmp_path / 'a/notes.doc').touch()
    (tmp_path / '.thumbnails').mkdir()
    assert split_folder(tmp_path, val=0.3) == {'a': (7, 3), 'b': (7, 3)}
    lists = {
        name: (tmp_path / f'{name}.txt').read_text().splitlines()
        for name in ('train', 'val')
    }
    assert [len(lines) for lines in lists.values()] == [14, 6]
    expected = {f'a/{i}.png 0' for i in range(10)}
    expected |= {f'b/{i}.png 1' for i in range(10)}
    assert {*lists['train'], *lists['val']} == expected


def test_lists_are_the_same_again_or_stay(tmp_path):
    draw(tmp_path, num=10)
    split_folder(tmp_path)
    before = (tmp_path / 'val.txt').read_text()
    split_folder(tmp_path)
    with pytest.raises(UserError, match='divides otherwise'):
        split_folder(tmp_path, seed=1)
    assert (tmp_path / 'val.txt').read_text() == before


@pytest.mark.parametrize('share', [0.001, 0.999])
def test_each_class_is_in_both_lists(tmp_path, share):
    draw(tmp_path, num=2)
    assert set(split_folder(tmp_path, val=share).values()) == {(1, 1)}


def test_folders_that_cannot_be_divided(tmp_path):
    with pytest.raises(UserError, match='there is no folder'):
        split_folder(tmp_path / 'missing')
    with pytest.raises(UserError, match='has 0 folders'):
        split_folder(tmp_path)
    draw(tmp_path / 'one', ['a', 'b'], num=1)
    with pytest.raises(UserError, match='a has 1 pictures'):
        split_folder(tmp_path / 'one')
    draw(tmp_path / 'divided/train')
    draw(tmp_path / 'divided/val')
    with pytest.raises(UserError, match='divided already'):
        split_folder(tmp_path / 'divided')


@pytest.mark.parametrize('classes', [CLASSES, None, ['c', 'a', 'b']])
def test_order_of_classes(tmp_path, classes):
    """Names that are not the folders' may have any order."""
    from mmpretrain.datasets import CustomDataset

    draw(tmp_path)
    metainfo = classes and dict(classes=classes)
    dataset = CustomDataset(str(tmp_path), metainfo=metainfo)
    class_checks.check_order(dataset, 'it')


def test_wrong_order_of_classes(tmp_path):
    from mmpretrain.datasets import CustomDataset

    draw(tmp_path)
    dataset = CustomDataset(
        str(tmp_path), metainfo=dict(classes=CLASSES[::-1])
    )
    with pytest.raises(UserError, match=r"order \['ball', 'box', 'stripes'\]"):
        class_checks.check_order(dataset, 'it')


def test_top_of_more_classes_than_there_are(tmp_path):
    cfg = small_training.config(tmp_path)
    small_training.count_epochs(cfg, 1)
    cfg.val_evaluator = dict(type='Accuracy', topk=(1, 9))
    cfg.test_evaluator = dict(type='Accuracy', topk=(1, 9))
    runner = launch.build_runner(cfg)
    with pytest.raises(UserError, match='val_evaluator asks for the top 9'):
        runner.train()
    with pytest.raises(UserError, match='test_evaluator asks for the top 9'):
        runner.test()


def test_mixed_labels_of_another_number(tmp_path):
    augments = dict(augments=[dict(type='Mixup', alpha=0.8)])
    options = {
        'model.train_cfg': augments,
        'model.data_preprocessor.num_classes': 1000,
    }
    cfg = small_training.config(tmp_path, **options)
    with pytest.raises(UserError, match='mixes pictures of 1000'):
        launch.build_runner(cfg).train()


def test_pictures_of_the_same_name_are_all_drawn(tmp_path):
    cfg = small_training.config(tmp_path)
    photos = draw(tmp_path / 'photos', num=3)
    cfg.test_dataloader = dict(cfg.train_dataloader, batch_size=4)
    cfg.test_dataloader.sampler = dict(type='DefaultSampler', shuffle=False)
    cfg.test_dataloader.dataset.update(data_root=str(photos), data_prefix='')
    cfg.test_evaluator = dict(type='Accuracy')
    cfg.model.head.num_classes = len(CLASSES)
    shown = tmp_path / 'shown'
    launch.enable_visualization(cfg, str(shown), show=False)
    launch.build_runner(cfg).test()
    found = {str(p.relative_to(shown)) for p in shown.rglob('*.png')}
    assert found == {f'{c}/{i}.png_0.png' for c in CLASSES for i in range(3)}
