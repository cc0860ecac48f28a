"""Pictures and labels that a model cannot use, named by their files."""

from collections.abc import Iterator
from typing import Any

import mmengine.dataset
from mmcv.transforms import LoadAnnotations
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

from clustr_mm.errors import UserError, summary
from clustr_mm.registry import HOOKS
from clustr_mm.wrappers import unwrapped

FILES = ('img_path', 'seg_map_path')
ADVICE = 'Mend or replace the file, or take it out of the data set.'


class Compose(mmengine.dataset.Compose):
    """A pipeline that tells which file it cannot use, and what for."""

    def __init__(self, pipeline: mmengine.dataset.Compose):
        self.transforms = pipeline.transforms

    def __call__(self, data: dict) -> dict | None:
        for transform in self.transforms:
            files = [data[key] for key in FILES if data.get(key)]
            try:
                data = transform(data)
            except UserError:
                raise
            # A decoder may raise anything, and so may what has to do with
            # what it found.
            except Exception as error:
                raise UserError(
                    f'{" or ".join(map(str, files))} cannot be prepared by '
                    f'{type(transform).__name__}: {summary(error)}. {ADVICE}'
                ) from error
            if isinstance(transform, LoadAnnotations):
                _check_map(data)
            if data is None:
                return None
        return data


def _check_map(data: dict | None):
    """A label map must have one value for each pixel of its picture.

    To test on, a picture may have been resized by then, and its map is not.
    """
    labels = (data or {}).get('gt_seg_map')
    shape = (data or {}).get('ori_shape')
    if labels is None or shape is None:
        return
    if labels.shape != tuple(shape):
        raise UserError(
            f'the label map {data.get("seg_map_path")} is of shape '
            f'{labels.shape}, but {data.get("img_path")} of '
            f'{tuple(shape)}: it must have one number for each pixel. '
            f'{ADVICE}'
        )


def check_instances(dataset: Dataset, what: str) -> None:
    """Make sure that there is anything to be learned at all.

    MMDetection leaves out boxes without an area, outside of their pictures or
    of classes that the config does not have.
    """
    if not hasattr(dataset, 'get_data_info'):
        return
    infos = map(dataset.get_data_info, range(len(dataset)))
    if not any(info.get('instances', True) for info in infos):
        raise UserError(
            f'no object is left in {what}: all boxes are without an area, '
            'outside of their pictures or of other classes than '
            "metainfo.classes. Look at the file's bbox and category_id."
        )


def name_files(dataset: Dataset) -> None:
    """Have a data set and those inside of it name what they cannot read."""
    for one in _datasets(dataset):
        pipeline = getattr(one, 'pipeline', None)
        if isinstance(pipeline, mmengine.dataset.Compose):
            one.pipeline = Compose(pipeline)


def _datasets(dataset: Dataset) -> Iterator[Dataset]:
    yield dataset
    inner = getattr(dataset, 'datasets', None) or []
    for one in [getattr(dataset, 'dataset', None), *inner]:
        if one is not None:
            yield from _datasets(one)


@HOOKS.register_module()
class CheckLabels(Hook):
    """Stop at a label that the model has no class for.

    On a GPU, the loss would stop the program with an assertion that names
    nothing; in a validation, such pixels would not be counted.
    """

    def before_train_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None
    ) -> None:
        model = unwrapped(runner.model)
        samples = _samples(data_batch)
        for sample in samples:
            for labels, head in _labelled(model, sample):
                _check_labels(labels, head, sample)

    before_val_iter = before_test_iter = before_train_iter


def _samples(batch: Any) -> list:
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    return samples if isinstance(samples, (list, tuple)) else []


def _labelled(model: nn.Module, sample) -> Iterator[tuple[Tensor, nn.Module]]:
    """Labels of a sample with the heads that learn them."""
    if 'gt_label' in sample:
        yield sample.gt_label, getattr(model, 'head', None)
    if 'gt_sem_seg' in sample:
        heads = getattr(model, 'decode_head', None)
        # Of a cascade, the last one decides.
        last = heads[-1] if isinstance(heads, nn.ModuleList) else heads
        yield sample.gt_sem_seg.data, last


def _check_labels(labels: Tensor, head: nn.Module | None, sample):
    number = getattr(head, 'num_classes', None)
    if not isinstance(number, int) or not isinstance(labels, Tensor):
        return
    bad = labels[(labels < 0) | (labels >= number)]
    bad = bad[(bad != getattr(head, 'ignore_index', 255)) & (bad != 255)]
    if bad.numel():
        file = sample.get('seg_map_path') or sample.get('img_path')
        raise UserError(
            f'{file} has the label {int(bad[0])}, but the '
            f'{type(head).__name__} of this config has {number} classes, 0 '
            f'to {number - 1}. Mend the label, or set num_classes and '
            'reduce_zero_label to what the data set has.'
        )
