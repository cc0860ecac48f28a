"""From a command line to a runner: what the training and testing tools share.

One set of tools serves the configs of all four toolboxes; `default_scope`
tells whose a config is.
"""

import argparse
import errno
import os
from collections.abc import Sequence
from pathlib import Path

from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.registry import RUNNERS
from mmengine.runner import Runner
from torch import nn

from clustr_mm import configs, outputs
from clustr_mm.checkpoints import published, replacements, safe_loading
from clustr_mm.checkpoints.resuming import newest_resumable
from clustr_mm.errors import UserError, missing
from clustr_mm.toolboxes import toolbox_of
from . import data_paths
from .interruption import report_interruption
from .prepare import FOR_TESTING, FOR_TRAINING, STEPS, Step, prepare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that the toolboxes' own scripts have in common."""
    parser.add_argument('--work-dir', help='folder for logs and checkpoints')
    parser.add_argument(
        '--data-root',
        help='folder of the data set, in place of the one that the config '
        'names',
    )
    configs.add_options(parser)
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
    replacements.install(trusted=args.trust_checkpoint)
    cfg = configs.read(args.config, args.cfg_options)
    cfg.launcher = args.launcher
    toolbox_of(cfg).require()
    if args.data_root:
        data_paths.move_root(cfg, args.data_root)
    if args.work_dir:
        cfg.work_dir = args.work_dir
    elif cfg.get('work_dir') is None:
        cfg.work_dir = f'work_dirs/{Path(args.config).stem}'
    return cfg


def build_runner(cfg: Config, steps: Sequence[Step] = STEPS) -> Runner:
    """Build the runner that the config asks for, prepared by the steps."""
    cfg = prepare(cfg, steps)
    outputs.make_folder(cfg.work_dir)
    return RUNNERS.build(cfg)


def train(cfg: Config) -> nn.Module:
    """Train as the config says; return the model."""
    try:
        with report_interruption(_checkpoint_folder(cfg)):
            return build_runner(cfg, FOR_TRAINING).train()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise UserError(
            f'{error.strerror}: cannot write to {cfg.work_dir}. The '
            'checkpoints that were there are whole. Make room and go on from '
            'the newest by --resume.'
        ) from error


def test(cfg: Config) -> dict[str, float]:
    """Test as the config says; return the metrics."""
    return build_runner(cfg, FOR_TESTING).test()


def enable_amp(cfg: Config) -> None:
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


def enable_auto_scale_lr(cfg: Config) -> None:
    """Scale the learning rate with the batch size."""
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise UserError(
            'this config does not say which batch size its learning rate is '
            'made for: add auto_scale_lr = dict(base_batch_size=...)'
        )
    cfg.auto_scale_lr.enable = True


def resume(cfg: Config, checkpoint: str) -> None:
    """Go on from a checkpoint, or with 'auto' from the work dir's newest.

    Where there is none yet, the run begins as the config says.
    """
    if checkpoint == 'auto':
        folder = _checkpoint_folder(cfg)
        checkpoint = newest_resumable(folder)
        if checkpoint is None:
            print_log(f'No checkpoint in {folder}: the run begins anew.')
            return
    elif published.is_name(checkpoint):
        raise UserError(
            f'{checkpoint} holds weights, and no state of a run to go on '
            'with. To start a new one from them, pass --cfg-options '
            f'load_from={checkpoint} in place of --resume.'
        )
    load_from(cfg, checkpoint)
    cfg.resume = True
    _keep_seed(cfg, checkpoint)


def _keep_seed(cfg: Config, checkpoint: str):
    """Go on with a run's seed, for the order of the pictures.

    MMEngine takes it from the checkpoint, but after it has built the loader.
    """
    randomness = cfg.setdefault('randomness', ConfigDict())
    if randomness.get('seed') is None and '://' not in checkpoint:
        found = safe_loading.load(checkpoint, map_location='cpu')
        randomness.seed = found.get('meta', {}).get('seed')


def _checkpoint_folder(cfg: Config) -> Path:
    hook = cfg.get('default_hooks', {}).get('checkpoint') or {}
    if hook.get('out_dir') is None:
        return Path(cfg.work_dir)
    return Path(hook.out_dir, Path(cfg.work_dir).name)


def load_from(cfg: Config, checkpoint: str) -> None:
    """Start from the weights of a checkpoint."""
    if published.is_name(checkpoint):
        published.check(checkpoint)
    elif '://' not in checkpoint and not Path(checkpoint).is_file():
        raise missing('checkpoint', checkpoint)
    cfg.load_from = checkpoint


def enable_tta(cfg: Config) -> None:
    """Test with the augmentations that the config lists for it."""
    if 'tta_model' not in cfg or 'tta_pipeline' not in cfg:
        raise UserError(
            'this config has no tta_model and tta_pipeline, which --tta '
            'needs: add them to it, or leave out --tta'
        )
    cfg.model = ConfigDict(cfg.tta_model, module=cfg.model)
    cfg.test_dataloader.dataset.pipeline = cfg.tta_pipeline


def enable_visualization(
    cfg: Config, show_dir: str | None, show: bool
) -> None:
    """Draw each test picture with what was predicted."""
    hook = cfg.get('default_hooks', {}).get('visualization')
    if hook is None:
        raise UserError(
            'this config has no default_hooks.visualization, which draws '
            'for --show and --show-dir'
        )
    hook.update(show=show, interval=1)
    if show_dir is not None:
        outputs.make_folder(show_dir)
    toolbox_of(cfg).draw_predictions(cfg, hook, show_dir)


def dump_predictions(cfg: Config, out: str) -> None:
    """Write the predictions: segmentors a folder of label maps, others a
    pickle."""
    toolbox_of(cfg).dump_predictions(cfg, out)
