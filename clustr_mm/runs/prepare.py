"""What makes a run of a config: a list of steps, each from config to config.

What a step wants done in the run, it says in the config: hooks, loops,
wrappers and a runner by their names, and the modules that register these. So
a dump of the config says it all, and whatever runs that does the same.
"""

import copy
import inspect
from collections.abc import Callable, Sequence

import torch
from mmengine.config import Config, ConfigDict

from clustr_mm import configs
from clustr_mm.checkpoints.unpublished import say_if_random
from clustr_mm.toolboxes import toolbox_of
from . import data_paths
from .cpu import cpu_distribution, cpu_mixed_precision
from .initial_weights import initial_weights_are_there

Step = Callable[[Config], Config]

MODULES = (
    'clustr_mm',
    'clustr_mm.training',
    'clustr_mm.visualization',
    'clustr_mm.runs',
)
SHARDING = 'clustr_mm.runs.sharding'
LOOPS = {
    'EpochBasedTrainLoop': 'ResumableEpochLoop',
    'IterBasedTrainLoop': 'ResumableIterLoop',
}
RUNNERS = {
    'Runner': 'CheckedRunner',
    'FlexibleRunner': 'CheckedFlexibleRunner',
}
# Options of torch's optimizers, of which no two go together.
HOW_TO_STEP = {'fused', 'foreach', 'capturable', 'differentiable'}


def own_modules(cfg: Config) -> Config:
    """The modules that register what the other steps name."""
    configs.add_import(cfg, *MODULES)
    return cfg


def toolbox_defaults(cfg: Config) -> Config:
    """What a toolbox leaves to its own scripts."""
    toolbox_of(cfg).complete(cfg)
    return cfg


def sharding(cfg: Config) -> Config:
    """Sharded parameters, unless a single process has nobody to share with."""
    if configs.type_of(cfg.get('strategy')) != 'ShardingStrategy':
        return cfg
    if cfg.get('launcher', 'none') == 'none':
        cfg.pop('runner_type', None)
        cfg.pop('strategy')
    else:
        configs.add_import(cfg, SHARDING)
    return cfg


def atomic_checkpoints(cfg: Config) -> Config:
    """Checkpoints that are complete or not there, with random states."""
    hooks = cfg.setdefault('default_hooks', ConfigDict())
    if isinstance(hooks, dict):
        hooks.setdefault('checkpoint', ConfigDict(type='CheckpointHook'))
    for part in (hooks, cfg.get('custom_hooks')):
        for _, hook in configs.walk(part):
            if configs.type_of(hook) == 'CheckpointHook':
                hook['type'] = 'AtomicCheckpointHook'
    return cfg


def resumable_loop(cfg: Config) -> Config:
    """A training loop whose random numbers go on when it is resumed."""
    loop = cfg.get('train_cfg')
    if not isinstance(loop, dict):
        return cfg
    kind = configs.type_of(loop)
    if kind is None and 'by_epoch' in loop:
        by_epoch = loop.pop('by_epoch')
        kind = 'EpochBasedTrainLoop' if by_epoch else 'IterBasedTrainLoop'
    if kind in LOOPS:
        loop.type = LOOPS[kind]
    return cfg


def checks(cfg: Config) -> Config:
    """Hooks that stop at weights, labels and classes that do not fit."""
    for hook in ('CheckCompatibility', 'CheckLabels', 'CheckClasses'):
        configs.add_hook(cfg, hook)
    return cfg


def bad_losses(cfg: Config) -> Config:
    """A hook that leaves out steps along NaN, for a single optimizer."""
    hooks, wrapper = cfg.get('default_hooks'), cfg.get('optim_wrapper')
    if isinstance(hooks, dict) and 'bad_loss' in hooks:
        return cfg  # set, or switched off
    if isinstance(wrapper, dict) and 'optimizer' in wrapper:
        configs.add_hook(cfg, 'StopOnBadLoss')
    return cfg


def fused_steps(cfg: Config) -> Config:
    """On a GPU, a step of few launches, that looks out for NaN by itself."""
    wrapper = cfg.get('optim_wrapper')
    optimizer = wrapper.get('optimizer') if isinstance(wrapper, dict) else None
    if not torch.cuda.is_available() or not isinstance(optimizer, dict):
        return cfg
    kind = getattr(torch.optim, str(configs.type_of(optimizer)), None)
    known = inspect.signature(kind).parameters if kind is not None else ()
    if 'fused' in known and not HOW_TO_STEP.intersection(optimizer):
        optimizer['fused'] = True
    return cfg


def progress(cfg: Config) -> Config:
    """A remaining time of the whole run, and a word on how it ended."""
    for part in (cfg.get('default_hooks'), cfg.get('custom_hooks')):
        for _, hook in configs.walk(part):
            if configs.type_of(hook) == 'IterTimerHook':
                hook['type'] = 'WholeRunTimerHook'
    configs.add_hook(cfg, 'SummaryHook')
    return cfg


def checked_runner(cfg: Config) -> Config:
    """A runner that names what of a config or its data it cannot work with."""
    kind = cfg.get('runner_type', 'Runner')
    cfg.runner_type = RUNNERS.get(kind, kind)
    return cfg


STEPS: tuple[Step, ...] = (
    own_modules,
    toolbox_defaults,
    sharding,
    cpu_mixed_precision,
    cpu_distribution,
    atomic_checkpoints,
    resumable_loop,
    checks,
    bad_losses,
    fused_steps,
    progress,
    checked_runner,
)
FOR_TRAINING = (
    data_paths.training_data_is_there,
    initial_weights_are_there,
    say_if_random,
    *STEPS,
)
FOR_TESTING = (data_paths.test_data_is_there, *STEPS)


def prepare(cfg: Config, steps: Sequence[Step] = STEPS) -> Config:
    """A copy of a config with what each step adds to it."""
    cfg = copy.deepcopy(cfg)
    for step in steps:
        cfg = step(cfg)
    return cfg
