"""From a command line to a runner: what the training and testing tools share.

One set of tools serves the configs of all four toolboxes; `default_scope`
tells whose a config is.
"""

import argparse
import errno
import os
from pathlib import Path

import torch
from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import nn

from . import (
    checkpoint_fit,
    config_files,
    data_location,
    host,
    interruption,
    outputs,
    safe_loading,
    whole_checkpoints,
)
from .checked_runner import CheckedRunner
from .checkpoint_fit import CheckFit
from .class_checks import CheckClasses
from .data_checks import CheckLabels
from .dependencies import PACKAGES, require
from .errors import UserError


def add_arguments(parser: argparse.ArgumentParser):
    """Add the arguments that the toolboxes' own scripts have in common."""
    parser.add_argument('--work-dir', help='folder for logs and checkpoints')
    parser.add_argument(
        '--data-root',
        help='folder of the data set, in place of the one that the config '
        'names',
    )
    config_files.add_options(parser)
    safe_loading.add_argument(parser)
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm', 'mpi'],
        default='none',
        help='what starts the processes of a distributed run',
    )
    # For launchers that pass it instead of setting LOCAL_RANK.
    parser.add_argument(
        '--local-rank', '--local_rank', type=int, help=argparse.SUPPRESS
    )


def load_config(args: argparse.Namespace) -> Config:
    """Read the config file and apply the arguments of `add_arguments`."""
    if args.local_rank is not None:
        os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    safe_loading.install(trusted=args.trust_checkpoint)
    whole_checkpoints.install()
    checkpoint_fit.install()
    cfg = config_files.read(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    scope = cfg.get('default_scope', 'mmengine')
    if scope in PACKAGES:
        require(scope)
    if args.data_root:
        data_location.move_root(cfg, args.data_root)
    if args.work_dir:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = f'work_dirs/{Path(args.config).stem}'
    return cfg


def build_runner(cfg: Config) -> Runner:
    """Build the runner that the config asks for, fit for this host."""
    outputs.make_folder(cfg.work_dir)
    host.adapt(cfg)
    if cfg.get('default_scope') == 'mmpretrain':
        _complete_loaders(cfg)
    if cfg.get('launcher', 'none') == 'none':
        _unshard(cfg)
    if 'runner_type' in cfg:
        runner = RUNNERS.build(cfg)
    else:
        runner = CheckedRunner.from_cfg(cfg)
    runner.register_hook(CheckFit())
    runner.register_hook(CheckLabels())
    runner.register_hook(CheckClasses())
    return runner


def _unshard(cfg: Config):
    """A single process has nobody to share its parameters with."""
    if (cfg.get('strategy') or {}).get('type') == 'ShardingStrategy':
        cfg.pop('runner_type', None)
        cfg.pop('strategy')


def train(cfg: Config) -> nn.Module:
    """Train as the config says; return the model."""
    if not cfg.get('resume'):
        _check_initial_weights(cfg.model, 'model')
        if cfg.get('load_from'):
            _check_is_there(cfg.load_from, 'load_from')
    try:
        with interruption.told(_checkpoint_folder(cfg)):
            return build_runner(cfg).train()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f'{error.strerror}: cannot write to {cfg.work_dir}. The '
            'checkpoints that were there are whole. Make room and go on from '
            'the newest by --resume.'
        ) from error


def _check_initial_weights(node, path: str):
    """Make sure that files which parts of a model start from are there."""
    if isinstance(node, dict):
        children = node.items()
    elif isinstance(node, (list, tuple)):
        children = enumerate(node)
    else:
        return
    for key, value in children:
        where = f'{path}.{key}'
        is_name = key in ('checkpoint', 'pretrained') and isinstance(
            value, str
        )
        if is_name:
            _check_is_there(value, where)
        _check_initial_weights(value, where)


def _check_is_there(checkpoint: str, where: str):
    """Make sure that a checkpoint which a config names is there."""
    if '://' not in checkpoint and not Path(checkpoint).is_file():
        unset = where.removesuffix('.checkpoint')  # of an init_cfg
        raise UserError(
            f'{where} is {checkpoint}, which does not exist. The head of the '
            'config says where it comes from. If it is elsewhere, say so by '
            f'--cfg-options {where}=FILE; to start without it, by '
            f'{unset}=None'
        )


def _complete_loaders(cfg: Config):
    """Fill in what MMPretrain's configs leave to its own scripts."""
    for name in ('train', 'val', 'test'):
        loader = cfg.get(f'{name}_dataloader')
        if loader is not None:
            loader.setdefault('pin_memory', True)
            loader.setdefault('persistent_workers', loader.num_workers > 0)
            loader.setdefault('collate_fn', dict(type='default_collate'))


def enable_amp(cfg: Config):
    """Train in mixed precision, of the kind that this host has."""
    if cfg.optim_wrapper.get('type', 'OptimWrapper') not in (
        'OptimWrapper',
        'AmpOptimWrapper',
    ):
        raise UserError(
            f"--amp replaces an OptimWrapper, but this config's optimizer "
            f'wrapper is {cfg.optim_wrapper.type}'
        )
    cfg.optim_wrapper.type = 'AmpOptimWrapper'
    cfg.optim_wrapper.setdefault('loss_scale', 'dynamic')


def enable_auto_scale_lr(cfg: Config):
    """Scale the learning rate with the batch size."""
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise UserError(
            'this config does not say which batch size its learning rate is '
            'made for: add auto_scale_lr = dict(base_batch_size=...)'
        )
    cfg.auto_scale_lr.enable = True


def resume(cfg: Config, checkpoint: str):
    """Go on from a checkpoint, or with 'auto' from the work dir's newest.

    Where there is none yet, the run begins as the config says.
    """
    if checkpoint == 'auto':
        folder = _checkpoint_folder(cfg)
        checkpoint = whole_checkpoints.newest_whole(folder)
        if checkpoint is None:
            print_log(f'No checkpoint in {folder}: the run begins anew.')
            return
    load_from(cfg, checkpoint)
    cfg.resume = True
    _keep_seed(cfg, checkpoint)


def _keep_seed(cfg: Config, checkpoint: str):
    """Go on with a run's seed, for the order of the pictures.

    MMEngine takes it from the checkpoint, but after it has built the loader.
    """
    randomness = cfg.setdefault('randomness', ConfigDict())
    if randomness.get('seed') is None and '://' not in checkpoint:
        meta = torch.load(checkpoint, map_location='cpu').get('meta', {})
        randomness.seed = meta.get('seed')


def _checkpoint_folder(cfg: Config) -> Path:
    hook = cfg.get('default_hooks', {}).get('checkpoint') or {}
    if hook.get('out_dir') is None:
        return Path(cfg.work_dir)
    return Path(hook.out_dir, Path(cfg.work_dir).name)


def load_from(cfg: Config, checkpoint: str):
    """Start from the weights of a checkpoint."""
    is_local = '://' not in checkpoint
    if is_local and not Path(checkpoint).is_file():
        raise UserError(f'there is no checkpoint {checkpoint}')
    cfg.load_from = checkpoint


def enable_tta(cfg: Config):
    """Test with the augmentations that the config lists for it."""
    if 'tta_model' not in cfg or 'tta_pipeline' not in cfg:
        raise UserError(
            'this config has no tta_model and tta_pipeline, which --tta needs'
        )
    cfg.model = ConfigDict(cfg.tta_model, module=cfg.model)
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline


def enable_visualization(cfg: Config, show_dir: str | None, show: bool):
    """Draw each test picture with what was predicted."""
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise UserError(
            'this config has no default_hooks.visualization, which draws '
            'for --show and --show-dir'
        )
    hook.update(show=show, interval=1)
    scope = cfg.get('default_scope')
    hook['draw' if scope in ('mmseg', 'mmdet') else 'enable'] = True
    if show_dir is None:
        return
    outputs.make_folder(show_dir)
    if scope == 'mmseg':
        cfg.visualizer.save_dir = show_dir
    elif scope == 'mmdet':
        # It is joined to the work dir, unless absolute.
        hook.test_out_dir = str(Path(show_dir).absolute())
    elif scope == 'mmpretrain' and hook.type == 'VisualizationHook':
        from .visualization.by_class import ClassFoldersHook

        hook.update(type=ClassFoldersHook.__name__, out_dir=show_dir)
    else:
        hook.out_dir = show_dir


def dump_predictions(cfg: Config, out: str):
    """Write the predictions: segmentors a folder of label maps, others a
    pickle."""
    scope = cfg.get('default_scope')
    if scope == 'mmseg':
        outputs.make_folder(out)
        cfg.test_evaluator.update(output_dir=out, keep_results=True)
        return
    if not out.endswith(('.pkl', '.pickle')):
        raise UserError(f'--out must end with .pkl, but is {out}')
    outputs.check_file(out)
    dump = 'DumpDetResults' if scope == 'mmdet' else 'DumpResults'
    evaluator = cfg.test_evaluator
    if not isinstance(evaluator, (list, tuple)):
        evaluator = [evaluator]
    cfg.test_evaluator = [*evaluator, dict(type=dump, out_file_path=out)]
