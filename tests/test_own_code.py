"""What docs/ shows of files outside of the package: they do what it says."""

import re
import sys
from pathlib import Path

import pytest
import torch
from mmengine.config import Config

from clustr_mm.analysis.models import build_model, read_config
from clustr_mm.errors import UserError
from clustr_mm.export.onnx import trace
from clustr_mm.registry import MODELS
from clustr_mm.shapes import make_shapes
from clustr_mm.swap import swapping
from clustr_mm.swap.swapping import swap_backbone
from clustr_mm.visualization import draw_tokens
from tests.runs import ROOT, run_tool
from tests.tiny_models import vit_arch
from tests.torch_features import exports

RETINANET = 'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'


def blocks(page):
    text = (ROOT / 'docs' / page).read_text()
    return re.findall(r'^```python\n(.*?)^```', text, re.M | re.S)


@pytest.fixture
def largest(tmp_path, monkeypatch):
    """The reducer and its config, in a folder where one works."""
    pytest.importorskip('mmpretrain')
    code, config = blocks('adding_a_reducer.md')[-2:]
    (tmp_path / 'largest.py').write_text(code)
    path = tmp_path / 'largest_imagenet.py'
    path.write_text(config.replace("'configs/", f"'{ROOT}/configs/"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    # The next test has a file of its own.
    sys.modules.pop('largest', None)
    MODELS._module_dict.pop('LargestTokens', None)


def small(cfg):
    cfg.model.backbone.update(
        arch=vit_arch(24, 12, 2, mlp_ratio=1, patch_size=16),
        img_size=64,
    )
    cfg.model.head.in_channels = 24
    return cfg


def test_own_reducer_keeps_the_largest(largest):
    cfg = small(read_config(largest))
    cfg.model.backbone.out_type = 'featmap'
    backbone = build_model(cfg).backbone
    rule = backbone.reducers[0]
    x = torch.randn(2, 10, 24)
    trail = backbone.embed(torch.randn(2, 3, 32, 80), track=True)[1]
    kept = rule(x, trail, None)
    for one, found in zip(x, kept):
        expected = sorted(one, key=torch.norm, reverse=True)[:7]
        assert torch.equal(found, torch.stack(expected))
    # Those that left are where they were, with the value they had.
    fmap = trail.to_map(trail.bank(kept))
    assert torch.equal(fmap.flatten(2).mT, x)


def test_own_reducer_learns_and_is_drawn(largest):
    model = build_model(small(read_config(largest)))
    images = torch.randn(2, 3, 64, 64)
    model(images, mode='tensor').sum().backward()
    unused = [n for n, p in model.named_parameters() if p.grad is None]
    assert not unused
    picture = images[0].byte().permute(1, 2, 0).contiguous().numpy()
    assert len(draw_tokens(model, picture)[1]) == 3


@exports
def test_own_reducer_is_exported(largest):
    model = build_model(small(read_config(largest))).backbone
    images = torch.randn(3, 3, 64, 64)
    program = trace(model, (64, 64), dynamic_batch=True)
    found = program.module()(images)
    torch.testing.assert_close(found, model(images))


def test_own_backbone_is_swapped_in(largest, tmp_path):
    pytest.importorskip('mmdet')
    swap_backbone(RETINANET, str(largest), tmp_path / 'mine.py')
    cfg = Config.fromfile(tmp_path / 'mine.py')
    assert cfg.model.backbone.type == 'ThinViT'
    assert [dict(reducer) for reducer in cfg.model.backbone.reducers] == [
        dict(type='LargestTokens', block=block, share=0.7)
        for block in (3, 6, 9)
    ]
    assert cfg.model.backbone.out_type == 'featmap'
    assert cfg.model.neck.type == 'SimpleFPN'
    assert cfg.custom_imports.imports == ['clustr_mm', 'largest']


def test_imports_that_are_one_text(largest, tmp_path):
    """As MMEngine takes them, too."""
    pytest.importorskip('mmdet')
    path = Path(swapping.find_config(RETINANET))
    (tmp_path / 'theirs.py').write_text(
        f"_base_ = '{path}'\ncustom_imports = dict(imports='mmdet.models')\n"
    )
    swap_backbone('theirs.py', 'clustr_t', tmp_path / 'mine.py')
    cfg = Config.fromfile(tmp_path / 'mine.py')
    assert cfg.custom_imports.imports == ['mmdet.models', 'clustr_mm']


def test_own_code_that_is_not_found(largest, tmp_path):
    (tmp_path / 'largest.py').rename(tmp_path / 'renamed.py')
    with pytest.raises(UserError) as error:
        read_config(largest)
    assert "No module named 'largest'" in str(error.value)
    assert 'PYTHONPATH=FOLDER' in str(error.value)


@pytest.mark.parametrize(
    ('settings', 'message'),
    [
        (dict(patch_size=12), 'set patch_size=16'),
        (
            dict(_delete_=True, type='mmpretrain.ResNet', depth=18),
            'no backbone',
        ),
    ],
)
def test_backbones_that_cannot_be_taken(largest, tmp_path, settings, message):
    pytest.importorskip('mmdet')
    (tmp_path / 'other.py').write_text(
        f"_base_ = 'largest_imagenet.py'\nmodel = dict(backbone={settings})\n"
    )
    with pytest.raises(UserError, match=message):
        swap_backbone(RETINANET, 'other.py', tmp_path / 'mine.py')
    assert not (tmp_path / 'mine.py').exists()


@pytest.mark.slow
def test_own_objects(tmp_path):
    """The config of docs/data.md, on a detector with another backbone."""
    pytest.importorskip('mmdet')
    config = blocks('data.md')[-1]
    make_shapes('detection', tmp_path / 'data/shapes_detection', 12, size=64)
    base = 'mmdet::faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py'
    swap_backbone(base, 'clustr_t', tmp_path / 'my_detector.py', adamw=True)
    (tmp_path / 'mine.py').write_text(config)
    log = run_tool(
        *(
            'train.py',
            'my_detector.py',
            '--data-root',
            'data/shapes_detection',
        ),
        cwd=tmp_path,
        ok=False,
    )
    assert 'error: there is no picture left in train_dataloader' in log
    page = (ROOT / 'docs/data.md').read_text()
    scales = re.findall(r'\S*scale="\(256,256\)"', page)
    assert len(scales) == 2
    scales = [text.replace('"', '').replace('256', '96') for text in scales]
    log = run_tool(
        *('train.py', 'mine.py', '--cfg-options', 'train_cfg.max_epochs=1'),
        *scales,
        cwd=tmp_path,
    )
    assert 'coco/bbox_mAP' in log
    log = run_tool(
        *('test.py', 'mine.py', 'work_dirs/mine/epoch_1.pth'),
        *('--show-dir', 'shown', '--cfg-options'),
        scales[1].replace('val', 'test'),
        cwd=tmp_path,
    )
    assert len(list((tmp_path / 'shown').glob('*.jpg'))) == 2
