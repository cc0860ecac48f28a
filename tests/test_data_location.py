import pytest
from mmengine.config import Config

from clustr_mm.errors import UserError
from clustr_mm.runs import data_paths


def coco(split, **kwargs):
    return dict(
        dataset=dict(
            type='CocoDataset',
            data_root='data/coco/',
            ann_file=f'annotations/instances_{split}2017.json',
            data_prefix=dict(img=f'{split}2017/'),
            **kwargs,
        )
    )


@pytest.fixture
def cfg():
    return Config(
        dict(
            train_dataloader=coco('train'),
            val_dataloader=coco('val'),
            val_evaluator=dict(
                type='CocoMetric',
                ann_file='data/coco/annotations/instances_val2017.json',
            ),
        )
    )


def test_moves_the_evaluator_with_the_data(cfg):
    data_paths.move_root(cfg, '/big/coco')
    assert cfg.train_dataloader.dataset.data_root == '/big/coco'
    assert cfg.val_evaluator.ann_file == (
        '/big/coco/annotations/instances_val2017.json'
    )
    assert cfg.val_dataloader.dataset.ann_file == (
        'annotations/instances_val2017.json'
    )


@pytest.mark.parametrize('split', ['train', 'val', 'test'])
def test_several_roots_cannot_be_moved(split, cfg):
    cfg.test_dataloader = coco('test')
    cfg[f'{split}_dataloader'].dataset.data_root = 'elsewhere'
    with pytest.raises(UserError, match='elsewhere'):
        data_paths.move_root(cfg, 'new')


def test_names_the_first_path_that_is_missing(cfg, tmp_path):
    data_paths.move_root(cfg, str(tmp_path))
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/instances_train2017.json').touch()
    with pytest.raises(UserError) as error:
        data_paths.check(cfg, 'train_dataloader')
    assert f'{tmp_path}/train2017' in str(error.value)
    assert 'cocodataset.org' in str(error.value)
    (tmp_path / 'train2017').mkdir()
    data_paths.check(cfg, 'train_dataloader')


@pytest.mark.parametrize(
    ('kind', 'said'),
    [
        ('ADE20KDataset', 'groups.csail.mit.edu'),
        ('ImageNet', 'image-net.org'),
        ('CIFAR100', 'www.cs.toronto.edu'),
        ('CocoDataset', 'cocodataset.org'),
        ('mmpose.CocoWholeBodyDataset', 'github.com/jin-s13'),
        ('MyDataset', 'which does not exist.\nIf it is elsewhere'),
    ],
)
def test_says_where_to_get_it(kind, said, cfg):
    cfg.train_dataloader.dataset.type = kind
    with pytest.raises(UserError) as error:
        data_paths.check(cfg, 'train_dataloader')
    assert said in str(error.value)


def test_what_is_on_a_server_is_not_looked_for(cfg, tmp_path):
    cfg.train_dataloader.dataset.update(
        data_root=str(tmp_path),
        ann_file='s3://bucket/train.json',
        data_prefix=dict(img='https://example.org/train'),
    )
    data_paths.check(cfg, 'train_dataloader')


def test_looks_inside_wrappers():
    wrapped = dict(
        train_dataloader=dict(
            dataset=dict(
                type='RepeatDataset',
                dataset=dict(type='ConcatDataset', datasets=[
                    coco('train')['dataset']]),
            )
        )
    )  # fmt: skip
    with pytest.raises(UserError, match='data/coco'):
        data_paths.check(Config(wrapped), 'train_dataloader')


def test_a_folder_of_pictures(tmp_path):
    """MMPretrain's data sets take one prefix rather than a dict."""
    cfg = Config(
        dict(
            train_dataloader=dict(
                dataset=dict(
                    type='CustomDataset',
                    data_root=str(tmp_path),
                    data_prefix='train',
                )
            )
        )
    )
    with pytest.raises(UserError, match=f'{tmp_path}/train'):
        data_paths.check(cfg, 'train_dataloader')
    (tmp_path / 'train').mkdir()
    data_paths.check(cfg, 'train_dataloader')
