"""The toolboxes read the generated sets, and truth scores 100 %.

Each metric is also given something wrong, to see that it would notice.
"""

import json

import numpy as np
import pytest
import torch
from mmengine.registry import DefaultScope

from clustr_mm.shapes import TASKS, make_shapes


@pytest.fixture(scope='module')
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp('shapes')
    return {
        task: make_shapes(task, root / task, num, size=size, val=0.5)
        for task, num, size in (
            ('segmentation', 12, (96, 128)),
            ('classification', 20, 48),
            ('detection', 16, (128, 160)),
            ('pose', 6, 256),
        )
    }


@pytest.fixture
def scope(request):
    with DefaultScope.overwrite_default_scope(request.param):
        yield


@pytest.mark.parametrize('scope', ['mmseg'], indirect=True)
@pytest.mark.parametrize('split', ['training', 'validation'])
def test_segmentation(scope, split, folders):
    pytest.importorskip('mmseg')
    from mmseg.datasets import BaseSegDataset
    from mmseg.evaluation import IoUMetric

    dataset = BaseSegDataset(
        data_root=str(folders['segmentation']),
        data_prefix={
            'img_path': f'images/{split}',
            'seg_map_path': f'annotations/{split}',
        },
        img_suffix='.jpg',
        seg_map_suffix='.png',
        reduce_zero_label=True,
        metainfo=TASKS['segmentation'].metainfo,
        pipeline=[
            {'type': 'LoadImageFromFile'},
            {'type': 'LoadAnnotations'},
            {'type': 'PackSegInputs'},
        ],
    )
    assert len(dataset) == 6
    truths = []
    for sample in dataset:
        assert sample['inputs'].shape == (3, 96, 128)
        truth = sample['data_samples'].gt_sem_seg.data
        assert set(truth.unique().tolist()) <= {*range(8), 255}
        truths.append(truth)

    def score(change):
        metric = IoUMetric()
        metric.dataset_meta = dataset.metainfo
        for truth in truths:
            sample = {
                'pred_sem_seg': {'data': change(truth.clone())},
                'gt_sem_seg': {'data': truth},
            }
            metric.process({}, [sample])
        return float(metric.evaluate(len(truths))['mIoU'])

    # What is predicted where nothing is labelled does not count.
    assert score(lambda t: t.where(t != 255, 0)) == 100
    assert score(lambda t: (t.where(t != 255, 0) + 1) % 8) < 1


@pytest.mark.parametrize('scope', ['mmpretrain'], indirect=True)
@pytest.mark.parametrize('split', ['train', 'val'])
def test_classification(scope, split, folders):
    pytest.importorskip('mmpretrain')
    from mmpretrain.datasets import CustomDataset, ImageNet
    from mmpretrain.evaluation import Accuracy

    arguments = {
        'data_root': str(folders['classification']),
        'pipeline': [{'type': 'LoadImageFromFile'}, {'type': 'PackInputs'}],
    }
    dataset = CustomDataset(data_prefix=split, **arguments)
    assert tuple(dataset.CLASSES) == TASKS['classification'].classes
    labels = dataset.get_gt_labels()
    assert np.bincount(labels).tolist() == [2] * 5
    assert dataset[0]['inputs'].shape == (3, 48, 48)

    imagenet = ImageNet(
        split=split,
        metainfo={'classes': TASKS['classification'].classes},
        **arguments,
    )
    assert (imagenet.get_gt_labels() == labels).all()

    def score(predicted):
        metric = Accuracy()
        scores = torch.eye(5)[torch.as_tensor(predicted)]
        samples = [
            {'pred_score': score, 'gt_label': torch.tensor([label])}
            for score, label in zip(scores, labels, strict=True)
        ]
        metric.process(None, samples)
        return metric.evaluate(len(labels))['accuracy/top1']

    assert score(labels) == 100
    assert score((labels + 1) % 5) == 0


@pytest.mark.parametrize('scope', ['mmdet'], indirect=True)
@pytest.mark.parametrize('split', ['train', 'val'])
def test_detection(scope, split, folders):
    pytest.importorskip('mmdet')
    from mmdet.datasets import CocoDataset
    from mmdet.evaluation import CocoMetric

    folder = folders['detection']
    annotations = f'annotations/instances_{split}2017.json'
    dataset = CocoDataset(
        data_root=str(folder),
        ann_file=annotations,
        data_prefix={'img': f'{split}2017/'},
        metainfo=TASKS['detection'].metainfo,
        test_mode=True,
        pipeline=[
            {'type': 'LoadImageFromFile'},
            {'type': 'LoadAnnotations', 'with_bbox': True, 'with_mask': True},
            {'type': 'PackDetInputs'},
        ],
    )
    assert len(dataset) == 8
    samples = [dataset[i]['data_samples'] for i in range(8)]
    said = json.loads((folder / annotations).read_text())['annotations']
    crowds = sum(a['iscrowd'] for a in said)
    assert sum(len(s.gt_instances) for s in samples) == len(said) - crowds
    assert sum(len(s.ignored_instances) for s in samples) == crowds

    def score(shift):
        metric = CocoMetric(str(folder / annotations), ['bbox', 'segm'])
        metric.dataset_meta = dataset.metainfo
        for sample in samples:
            truth = sample.gt_instances
            masks = torch.from_numpy(truth.masks.to_ndarray()).bool()
            predicted = {
                'bboxes': truth.bboxes.tensor + shift,
                'labels': truth.labels,
                'scores': torch.ones(len(truth)),
                'masks': masks.roll(shift, dims=2),
            }
            metric.process(
                {},
                [
                    {
                        'img_id': sample.img_id,
                        'ori_shape': sample.ori_shape,
                        'pred_instances': predicted,
                    }
                ],
            )
        result = metric.evaluate(len(samples))
        return result['coco/bbox_mAP'], result['coco/segm_mAP']

    assert score(0) == (1, 1)
    assert max(score(40)) < 0.3


def test_detection_has_crowds(folders):
    """A crowd is annotated by run lengths, everything else by polygons."""
    said = []
    for path in folders['detection'].glob('annotations/*.json'):
        said += json.loads(path.read_text())['annotations']
    assert any(a['iscrowd'] for a in said)
    assert all(a['id'] > 0 for a in said)
    for annotation in said:
        outline = annotation['segmentation']
        assert isinstance(outline, dict if annotation['iscrowd'] else list)


@pytest.mark.parametrize('scope', ['mmpose'], indirect=True)
@pytest.mark.parametrize('split', ['train', 'val'])
def test_pose(scope, split, folders):
    pytest.importorskip('mmpose')
    from mmpose.datasets import CocoWholeBodyDataset
    from mmpose.evaluation import CocoWholeBodyMetric

    folder = folders['pose']
    annotations = f'annotations/coco_wholebody_{split}_v1.0.json'
    dataset = CocoWholeBodyDataset(
        data_root=str(folder),
        ann_file=annotations,
        data_prefix={'img': f'{split}2017/'},
        data_mode='topdown',
        test_mode=True,
        pipeline=[
            {'type': 'LoadImage'},
            {'type': 'GetBBoxCenterScale'},
            {'type': 'TopdownAffine', 'input_size': (96, 128)},
            {'type': 'PackPoseInputs'},
        ],
    )
    assert {dataset[i]['inputs'].shape for i in range(len(dataset))} == {
        (3, 128, 96)
    }

    def score(shift):
        metric = CocoWholeBodyMetric(ann_file=str(folder / annotations))
        metric.dataset_meta = dataset.metainfo
        for i in range(len(dataset)):
            info = dataset.get_data_info(i)
            sample = {
                'id': info['id'],
                'img_id': info['img_id'],
                'pred_instances': {
                    'keypoints': info['keypoints'] + shift,
                    'keypoint_scores': info['keypoints_visible'] * 1.0,
                },
                'gt_instances': {'bbox_scores': np.ones(1)},
            }
            metric.process({}, [sample])
        return metric.evaluate(len(dataset))['coco-wholebody/AP']

    assert score(0) == 1
    assert score(20) < 0.1


def test_pose_says_what_coco_wholebody_says(folders):
    """Keys, types and lengths of the published annotation files."""
    for path in folders['pose'].glob('annotations/*.json'):
        content = json.loads(path.read_text())
        (category,) = content['categories']
        assert category['id'] == 1
        assert category['name'] == 'person'
        assert len(category['keypoints']) == 17
        sizes = {(i['width'], i['height']) for i in content['images']}
        assert sizes == {(256, 256)}
        for person in content['annotations']:
            assert person['category_id'] == 1
            assert person['iscrowd'] == 0
            assert person['area'] > 0
            x, y, w, h = person['bbox']
            assert x >= 0
            assert y >= 0
            assert x + w <= 256
            assert y + h <= 256
            seen = np.array(person['keypoints'][2::3]) > 0
            assert person['num_keypoints'] == seen.sum()
            for part, number in (
                ('foot', 6),
                ('face', 68),
                ('lefthand', 21),
                ('righthand', 21),
            ):
                points = np.reshape(person[f'{part}_kpts'], (number, 3))
                assert isinstance(person[f'{part}_valid'], bool)
                assert person[f'{part}_valid'] == points.any()
                if part == 'foot':
                    continue
                x, y, w, h = person[f'{part}_box']
                labelled = points[points[:, 2] > 0, :2]
                assert (labelled >= (x - 0.01, y - 0.01)).all()
                assert (labelled <= (x + w + 0.01, y + h + 0.01)).all()
