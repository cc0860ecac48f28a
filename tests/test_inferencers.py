"""The code in docs/predictions.md runs, and predicts what the models do."""

import re
from pathlib import Path

import mmcv
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import init_default_scope
from mmengine.runner import save_checkpoint

from clustr_mm.analysis.models import build_model
from tests.runs import ROOT

CODE = re.findall(
    r'```python\n(.*?)```',
    (ROOT / 'docs/predictions.md').read_text(),
    re.DOTALL,
)
HEIGHT, WIDTH = 72, 96


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with a photo, and no config or checkpoint yet."""
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    photo = np.stack([rows + columns, rows * 2, columns], -1).astype(np.uint8)
    photo[20:50, 30:60] = (200, 40, 90)
    # A PNG by its content: decoders of JPEG differ.
    mmcv.imwrite(photo, str(tmp_path / 'photo.png'))
    (tmp_path / 'photo.png').rename(tmp_path / 'photo.jpg')
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    init_default_scope('mmengine')


def prepare(config, checkpoint, meta=None, options=None):
    """Put what the page names into the working directory.

    Returns:
        tuple: The config, and its model with the checkpoint's weights.
    """
    cfg = Config.fromfile(ROOT / config)
    pytest.importorskip(cfg.default_scope)
    # A detector that knows nothing yet is to find something all the same.
    cfg.merge_from_dict(options or {})
    for transform in cfg.test_dataloader.dataset.pipeline:
        if transform['type'] == 'Resize':
            transform['scale'] = (128, 128)
    path = Path(config)
    path.parent.mkdir(parents=True, exist_ok=True)
    cfg.dump(path)
    torch.manual_seed(0)
    model = build_model(cfg)
    state = dict(state_dict=model.state_dict(), meta=meta or {})
    save_checkpoint(state, checkpoint)
    return cfg, model


def own_predictions(cfg, model, samples=({},)):
    """What the model predicts if nobody is between it and its pipeline."""
    init_default_scope(cfg.default_scope)
    pipeline = Compose(
        transform
        for transform in cfg.test_dataloader.dataset.pipeline
        if transform['type'] != 'LoadAnnotations'
    )
    photo = dict(img_path='photo.jpg', img_id=0)
    data = [pipeline({**photo, **sample}) for sample in samples]
    with torch.no_grad():
        return model.test_step(pseudo_collate(data))


def run_page(*mentions):
    """Run the page's example that has all of these in it."""
    [code] = [
        code for code in CODE if all(mention in code for mention in mentions)
    ]
    names = {}
    exec(code, names)
    return names


def drawn(folder):
    pictures = (folder / 'out').rglob('photo.*')
    return [p for p in pictures if p.suffix in ('.jpg', '.png')]


def test_page_has_no_other_code():
    assert len(CODE) == 5


def test_classes(folder):
    files = 'configs/clustr/clustr_t_imagenet.py', 'clustr_t.pth'
    cfg, model = prepare(*files)
    result = run_page(*files)['result']
    assert result['pred_scores'].shape == (1000,)
    assert result['pred_scores'].sum() == pytest.approx(1, abs=1e-4)
    assert isinstance(result['pred_class'], str)
    [own] = own_predictions(cfg, model)
    np.testing.assert_array_equal(result['pred_scores'], own.pred_score)
    assert result['pred_label'] == own.pred_label.item()
    assert drawn(folder)


def test_segmentation(folder):
    from mmseg.datasets import ADE20KDataset

    files = 'configs/clustr/fpn_clustr_t_ade20k.py', 'fpn_clustr_t.pth'
    meta = dict(dataset_meta=ADE20KDataset.METAINFO)
    cfg, model = prepare(*files, meta=meta)
    names = run_page(*files)
    labels = names['result']['predictions']
    assert labels.shape == (HEIGHT, WIDTH)
    [own] = own_predictions(cfg, model)
    np.testing.assert_array_equal(labels, own.pred_sem_seg.data[0])
    # A picture of one class would be equal to many.
    assert len(np.unique(labels)) > 1
    classes = names['predict'].visualizer.dataset_meta['classes']
    assert classes == ADE20KDataset.METAINFO['classes']
    assert drawn(folder)


DETECTOR = (
    'configs/clustr/mask_rcnn_clustr_t_coco.py',
    'mask_rcnn_clustr_t.pth',
)
FINDS_SOMETHING = {
    'model.test_cfg.rpn.max_per_img': 20,
    'model.test_cfg.rcnn.score_thr': 0.0,
    'model.test_cfg.rcnn.max_per_img': 5,
}


def test_boxes_and_masks(folder):
    cfg, model = prepare(*DETECTOR, options=FINDS_SOMETHING)
    found = run_page('DetInferencer', *DETECTOR)['found']
    [own] = own_predictions(cfg, model)
    own = own.pred_instances
    assert len(found['labels']) == len(own) > 0
    np.testing.assert_array_equal(found['labels'], own.labels)
    np.testing.assert_allclose(found['scores'], own.scores, atol=1e-6)
    np.testing.assert_allclose(found['bboxes'], own.bboxes, atol=1e-3)
    assert [mask['size'] for mask in found['masks']] == len(own) * [
        [HEIGHT, WIDTH]
    ]
    assert drawn(folder)


POSE = 'configs/clustr/pose_clustr_t_wholebody.py', 'pose_clustr_t.pth'


def assert_own_poses(people, cfg, model):
    """Each person's key points are the model's for that person's box."""
    from mmpose.datasets.datasets.utils import parse_pose_metainfo

    name = 'configs/_base_/datasets/coco_wholebody.py'
    meta = parse_pose_metainfo(dict(from_file=name))
    # All in one batch, as the inferencer does: where a heat map of random
    # weights is flat, its maximum depends on the last bits.
    samples = [
        dict(
            meta,
            bbox=np.array(person['bbox'], np.float32),
            bbox_score=np.ones(1, np.float32),
        )
        for person in people
    ]
    for person, own in zip(people, own_predictions(cfg, model, samples)):
        own = own.pred_instances
        assert own.keypoints.shape == (1, 133, 2)
        np.testing.assert_allclose(
            person['keypoints'], own.keypoints[0], atol=1e-3
        )
        np.testing.assert_allclose(
            person['keypoint_scores'], own.keypoint_scores[0], atol=1e-5
        )


def test_pose_of_a_whole_picture(folder):
    cfg, model = prepare(*POSE)
    [person] = run_page('whole_image', *POSE)['people']
    assert person['bbox'] == ([0, 0, WIDTH, HEIGHT],)
    assert_own_poses([person], cfg, model)
    assert drawn(folder)


@pytest.mark.slow
def test_poses_in_boxes(folder):
    pose = prepare(*POSE)
    prepare(*DETECTOR, options=FINDS_SOMETHING)
    names = run_page(*DETECTOR, *POSE)
    [person] = names['people']
    assert person['bbox'] == ([0, 0, WIDTH, HEIGHT],)
    # Whatever is found, however unlikely, is somebody.
    predict = names['predict']
    predict.inferencer.det_cat_ids = range(80)
    [result] = predict('photo.jpg', bbox_thr=0.0, nms_thr=1.0)
    [people] = result['predictions']
    assert len(people) > 1
    assert_own_poses(people, *pose)
    assert drawn(folder)
