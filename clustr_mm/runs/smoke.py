"""Does a config train? Real tools, generated data, reduced sizes.

A config stays as it is: what is swapped is swapped by the options of the
command line, as a user would. The models keep their full width and depth;
pictures, batches and numbers of proposals are small.
"""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

from mmengine.config import Config

from clustr_mm import configs
from clustr_mm.checkpoints import published
from clustr_mm.errors import UserError
from clustr_mm.shapes import TASKS, make_shapes
from clustr_mm.toolboxes import toolbox_of

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
            f'--only {pattern!r} fits no main config in {folder}: give a part '
            'of a name such as evit/mask_rcnn'
        )
    return found


def _is_main(path: Path) -> bool:
    is_dense = path.stem.startswith(tuple(f'{use}_' for use in DENSE))
    is_recipe = configs.is_recipe(Path(path.parent.name))
    return is_recipe and (is_dense or path.stem in CLASSIFIERS)


def options(cfg: Config) -> dict:
    """What to override in a config, by its dotted path."""
    reduced = toolbox_of(cfg).reduced
    classes = TASKS[reduced.task].classes
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
        if reduced.names_classes:
            found[f'{loader}.dataset.metainfo.classes'] = classes
    for key in ('model', 'custom_hooks', *LOADERS):
        for path, node in configs.walk(cfg.get(key), key):
            for name, value in reduced.sizes.get(node.get('type'), {}).items():
                found[f'{path}.{name}'] = value
            if reduced.counts_classes and 'num_classes' in node:
                found[f'{path}.num_classes'] = len(classes)
    found |= {
        path: value
        for path, value in reduced.options.items()
        if configs.get(cfg, path) is not None
    }
    return found


def try_config(path: Path, tools: Path, out: Path) -> Outcome:
    """Train and test a config; data and logs go to ``out``."""
    outcome, start = Outcome(f'{path.parent.name}/{path.stem}'), time.time()
    cfg = Config.fromfile(path)
    reduced = toolbox_of(cfg).reduced
    # A set that is there already is not drawn again.
    data = make_shapes(
        reduced.task, out / reduced.task, reduced.num, size=reduced.size
    )
    work = out / path.parent.name / path.stem
    common = ['--data-root', str(data), '--work-dir', str(work)]
    common += ['--cfg-options', *configs.as_arguments(options(cfg))]
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


class Failure(Exception):
    """Says what a config did not do."""


def _run(tool: Path, arguments: list[str], log: Path):
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open('w') as stream:
        status = subprocess.run(
            [sys.executable, str(tool), *arguments],
            # Nothing is downloaded: what it starts from has learnt nothing.
            env={**os.environ, published.PLACE: published.RANDOM},
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
