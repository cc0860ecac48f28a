"""Does a config train? Real tools, generated data, reduced sizes.

A config stays as it is: what is swapped is swapped by the options of the
command line, as a user would. The models keep their full width and depth;
pictures, batches and numbers of proposals are small.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

import torch
from mmengine.config import Config

from .analysis.models import build_model
from .datasets import TASKS, make_shapes
from .errors import UserError

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# The uses of a backbone. Of the many recipes for classification, one each.
DENSE = ('upernet', 'fpn', 'mask_rcnn', 'retinanet', 'pose')
CLASSIFIERS = (
    'clustr_t_imagenet',
    'clustr_s_imagenet',
    'clustr_b_imagenet',
    'hvt_s1_imagenet',
    'token_pooling_s_l3_imagenet',
    'evit_s_k07_imagenet',
    'dynamicvit_s_k07_imagenet',
    'tome_s_r8_imagenet',
)


@dataclass(frozen=True)
class Reduced:
    """A task in little.

    Attributes:
        task: of the generated data.
        metric: what the test must report.
        num, size: of the pictures.
        batch, epochs: of the training, for configs that count epochs.
        iters: for configs that count iterations.
        lr: learning rate, of what learns fastest.
        sizes: new arguments of everything of a type, wherever it stands.
        options: others; those that a config does not have are left out.
    """

    task: str
    metric: str
    num: int
    size: int
    batch: int
    epochs: int = 0
    iters: int = 0
    lr: float = 1e-3
    sizes: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    @property
    def classes(self) -> tuple[str, ...]:
        return TASKS[self.task].classes


CODEC = dict(input_size=(96, 128), heatmap_size=(24, 32))
REDUCED = {
    'mmpretrain': Reduced(
        'classification',
        'accuracy/top1',
        num=100,
        size=64,
        batch=8,
        epochs=3,
        sizes=dict(
            RandomResizedCrop=dict(scale=64),
            ResizeEdge=dict(scale=72),
            CenterCrop=dict(crop_size=64),
            FreezeUntil=dict(epoch=1),
            KeepRateSchedule=dict(begin=0, end=2),
        ),
    ),
    'mmseg': Reduced(
        'segmentation',
        'mIoU',
        num=40,
        size=96,
        batch=4,
        iters=30,
        sizes=dict(
            RandomResize=dict(scale=(96, 96)),
            Resize=dict(scale=(96, 96)),
            RandomCrop=dict(crop_size=(64, 64)),
            SegDataPreProcessor=dict(size=(64, 64)),
        ),
    ),
    'mmdet': Reduced(
        'detection',
        'coco/bbox_mAP',
        num=30,
        size=128,
        batch=2,
        epochs=2,
        lr=2e-4,  # RetinaNet's loss leaps at 1e-3
        sizes=dict(Resize=dict(scale=(128, 128))),
        options={
            'model.train_cfg.rpn_proposal.nms_pre': 200,
            'model.train_cfg.rpn_proposal.max_per_img': 100,
            'model.train_cfg.rcnn.sampler.num': 32,
            'model.test_cfg.rpn.max_per_img': 50,
            'model.test_cfg.rcnn.max_per_img': 20,
            # So early, nothing reaches the usual threshold.
            'model.test_cfg.rcnn.score_thr': 0.0,
            'model.test_cfg.score_thr': 0.0,
        },
    ),
    'mmpose': Reduced(
        'pose',
        'coco-wholebody/AP',
        num=40,
        size=256,
        batch=8,
        epochs=4,
        sizes=dict(
            TopdownAffine=dict(input_size=CODEC['input_size']),
            MSRAHeatmap=CODEC,
        ),
        options={
            'val_dataloader.dataset.bbox_file': None,
            'test_dataloader.dataset.bbox_file': None,
        },
    ),
}


@dataclass
class Outcome:
    """How it went with a config; without an error, well."""

    name: str
    first_loss: float = math.nan
    last_loss: float = math.nan
    metric: float = math.nan
    seconds: float = 0.0
    error: str = ''


def main_configs(folder: Path, pattern: str = '*') -> list[Path]:
    """The main configs whose path in ``folder`` the pattern fits."""
    found = [
        path
        for path in sorted(folder.glob('*/*.py'))
        if _is_main(path)
        and fnmatch(str(path.relative_to(folder)), f'*{pattern}*')
    ]
    if not found:
        raise UserError(
            f'no main config in {folder} fits {pattern!r}: give a part of a '
            'name such as evit/mask_rcnn'
        )
    return found


def _is_main(path: Path) -> bool:
    is_dense = path.stem.startswith(tuple(f'{use}_' for use in DENSE))
    is_recipe = path.parent.name not in ('_base_', 'quickstart')
    return is_recipe and (is_dense or path.stem in CLASSIFIERS)


def options(cfg: Config) -> dict:
    """What to override in a config, by its dotted path."""
    reduced = REDUCED[cfg.default_scope]
    custom = cfg.optim_wrapper.get('paramwise_cfg', {}).get('custom_keys', {})
    fastest = max([1, *(own.get('lr_mult', 1) for own in custom.values())])
    found = {
        'optim_wrapper.optimizer.lr': reduced.lr / fastest,
        'default_hooks.logger.interval': 1,
        'log_processor.window_size': 1,
        'train_dataloader.batch_size': reduced.batch,
    }
    by_epoch = 'max_epochs' in cfg.train_cfg
    length = reduced.epochs if by_epoch else reduced.iters
    found[f'train_cfg.max_{"epochs" if by_epoch else "iters"}'] = length
    found['train_cfg.val_interval'] = length
    found['default_hooks.checkpoint.interval'] = length
    for i, scheduler in enumerate(cfg.get('param_scheduler', [])):
        if scheduler.type == 'LinearLR':  # no time to warm up
            found[f'param_scheduler.{i}.start_factor'] = 1.0
    for loader in LOADERS:
        found[f'{loader}.num_workers'] = 0
        found[f'{loader}.persistent_workers'] = False
        if cfg.default_scope in ('mmpretrain', 'mmdet'):
            found[f'{loader}.dataset.metainfo.classes'] = reduced.classes
    for path, node in _nodes(cfg, ('model', 'custom_hooks', *LOADERS)):
        for key, value in reduced.sizes.get(node.get('type'), {}).items():
            found[f'{path}.{key}'] = value
        if cfg.default_scope == 'mmdet' and 'num_classes' in node:
            found[f'{path}.num_classes'] = len(reduced.classes)
    found |= {
        k: v for k, v in reduced.options.items() if _get(cfg, k) is not None
    }
    return found


def _nodes(cfg: Config, keys: tuple[str, ...]) -> Iterator[tuple[str, dict]]:
    """All dicts below these keys, with their dotted paths."""
    stack = [(key, cfg.get(key)) for key in keys]
    while stack:
        path, node = stack.pop()
        if isinstance(node, dict):
            yield path, node
            stack += [(f'{path}.{k}', v) for k, v in node.items()]
        elif isinstance(node, (list, tuple)):
            stack += [(f'{path}.{i}', v) for i, v in enumerate(node)]


def _get(cfg: Config, path: str):
    """What a config has at a dotted path; None if it has no such path."""
    node = cfg
    for key in path.split('.'):
        if not isinstance(node, (dict, Config)) or key not in node:
            return None
        node = node[key]
    return node


def as_arguments(found: dict) -> list[str]:
    """Options as the tools' --cfg-options reads them."""
    return [
        f'{key}={value}'.replace(' ', '').replace("'", '')
        for key, value in found.items()
    ]


def try_config(path: Path, tools: Path, out: Path) -> Outcome:
    """Train and test a config; data and logs go to ``out``."""
    outcome, start = Outcome(f'{path.parent.name}/{path.stem}'), time.time()
    cfg = Config.fromfile(path)
    reduced = REDUCED[cfg.default_scope]
    # A set that is there already is not drawn again.
    data = make_shapes(
        reduced.task, out / reduced.task, reduced.num, size=reduced.size
    )
    work = out / path.parent.name / path.stem
    swapped = options(cfg) | _weights(cfg, work / 'initial.pth')
    common = ['--data-root', str(data), '--work-dir', str(work)]
    common += ['--cfg-options', *as_arguments(swapped)]
    try:
        _run(tools / 'train.py', [str(path), *common], work / 'train.log')
        losses = _losses(work)
        third = len(losses) // 3
        # The median: a single batch may be a hard one.
        outcome.first_loss = median(losses[:third])
        outcome.last_loss = median(losses[-third:])
        if not outcome.last_loss < outcome.first_loss:
            raise Failure(
                f'the loss does not fall: {outcome.first_loss:.4g} in the '
                f'first third, {outcome.last_loss:.4g} in the last'
            )
        checkpoint = (work / 'last_checkpoint').read_text()
        _run(
            tools / 'test.py',
            [str(path), checkpoint, *common],
            work / 'test.log',
        )
        outcome.metric = _metric(work, reduced.metric)
        if 'segm' in cfg.test_evaluator.get('metric', ()):
            _metric(work, 'coco/segm_mAP')
        for weights in work.glob('*.pth'):  # half a gigabyte each
            weights.unlink()
    except Failure as failure:
        outcome.error = str(failure)
    outcome.seconds = time.time() - start
    return outcome


def _weights(cfg: Config, path: Path) -> dict[str, str]:
    """Weights as a config starts from, though not trained ones."""
    keys = [k for k in ('load_from', 'model.pretrained') if _get(cfg, k)]
    if keys:
        state = build_model(cfg).state_dict()
        state = {k: v for k, v in state.items() if not k.startswith('teacher')}
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(state_dict=state), path)
    return dict.fromkeys(keys, str(path.absolute()))


class Failure(Exception):
    """Says what a config did not do."""


def _run(tool: Path, arguments: list[str], log: Path):
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open('w') as stream:
        status = subprocess.run(
            [sys.executable, str(tool), *arguments],
            stdout=stream,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if status:
        last = log.read_text().strip().splitlines()[-1:]
        raise Failure(f'{tool.name} ended with {status}: {last} (see {log})')


def _newest(work: Path, pattern: str) -> Path:
    return max(work.glob(pattern), key=lambda path: path.stat().st_mtime)


def _losses(work: Path) -> list[float]:
    lines = _newest(work, '*/vis_data/scalars.json').read_text().splitlines()
    records = map(json.loads, lines)
    losses = [record['loss'] for record in records if 'loss' in record]
    if len(losses) < 3 or not all(map(math.isfinite, losses)):
        raise Failure(f'the losses are {losses}')
    return losses


def _metric(work: Path, name: str) -> float:
    found = json.loads(_newest(work, '*/*.json').read_text())
    value = found.get(name)
    # Metrics of COCO are -1 where there is nothing to be found.
    if value is None or not math.isfinite(value) or value < 0:
        raise Failure(f'{name} is {value} in {found}')
    return value
