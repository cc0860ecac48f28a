"""Where a config looks for its data, and what to do if it is not there."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from clustr_mm import configs
from clustr_mm.errors import UserError

HOW_TO_GET = {
    'ADE20KDataset': 'ADE20K: unpack ADEChallengeData2016.zip from '
    'https://groups.csail.mit.edu/vision/datasets/ADE20K',
    'ImageNet': 'ImageNet-1K: train/ and val/ with one folder a class, from '
    'https://image-net.org',
    'CIFAR100': 'CIFAR-100: unpack cifar-100-python.tar.gz from '
    'https://www.cs.toronto.edu/~kriz/cifar.html',
    'CocoDataset': 'COCO 2017: annotations/, train2017/ and val2017/ from '
    'https://cocodataset.org',
    'CocoWholeBodyDataset': 'COCO 2017 pictures from https://cocodataset.org '
    'and in annotations/ the files coco_wholebody_{train,val}_v1.0.json from '
    'https://github.com/jin-s13/COCO-WholeBody',
}


def training_data_is_there(cfg: Config) -> Config:
    """Raise an error that says what to do about data that is not."""
    check(cfg, 'train_dataloader', 'val_dataloader')
    return cfg


def test_data_is_there(cfg: Config) -> Config:
    """The same, for a test."""
    check(cfg, 'test_dataloader')
    return cfg


def check(cfg: Config, *loaders: str) -> None:
    """Raise an error that says what to do unless all data is there."""
    for loader in loaders:
        for dataset in _datasets(cfg.get(loader)):
            for path in _paths(dataset):
                if not path.exists():
                    raise UserError(_advice(loader, dataset, path))


def move_root(cfg: Config, new: str) -> None:
    """Look for the data in the folder ``new``, evaluators included."""
    roots = {
        dataset.data_root
        for name in ('train', 'val', 'test')
        for dataset in _datasets(cfg.get(f'{name}_dataloader'))
        if dataset.get('data_root')
    }
    if len(roots) != 1:
        raise UserError(
            '--data-root replaces the one folder that a config names, but '
            f'this one names {sorted(roots) or "none"}: use --cfg-options'
        )
    (old,) = roots
    for name in ('train', 'val', 'test'):
        for key in (f'{name}_dataloader', f'{name}_evaluator'):
            for _, part in configs.walk(cfg.get(key)):
                for name, value in part.items():
                    part[name] = _moved(value, old, new)


def _datasets(node) -> Iterator[ConfigDict]:
    """The data sets below a loader, those inside of wrappers included."""
    if isinstance(node, dict):
        if any(key in node for key in ('data_root', 'ann_file')):
            yield node
        node = [node.get('dataset'), node.get('datasets')]
    if isinstance(node, (list, tuple)):
        for child in node:
            yield from _datasets(child)


def _paths(dataset: ConfigDict) -> list[Path]:
    root = Path(dataset.get('data_root') or '')
    prefix = dataset.get('data_prefix') or {}
    prefixes = [prefix] if isinstance(prefix, str) else prefix.values()
    parts = [dataset.get('ann_file'), *prefixes]
    return [root] + [root / p for p in parts if p and '://' not in p]


def _advice(loader: str, dataset: ConfigDict, path: Path) -> str:
    lines = [
        f'{loader} looks for its data in {path.absolute()}, which does not '
        'exist.'
    ]
    kind = str(dataset.get('type')).rsplit('.', 1)[-1]
    if kind in HOW_TO_GET:
        lines.append(f'To get it, {HOW_TO_GET[kind]}.')
    lines.append(
        f'If it is elsewhere, name its folder with --data-root DIR, or link '
        f'it: ln -s DIR {dataset.get("data_root") or path}'
    )
    return '\n'.join(lines)


def _moved(value: Any, old: str, new: str) -> Any:
    """A path, or a list of paths, in a folder that is elsewhere now."""
    if isinstance(value, str) and value.startswith(old):
        return str(Path(new, value[len(old) :].lstrip('/')))
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(part, old, new) for part in value)
    return value
