"""What a host without an accelerator needs so that any config runs on it.

MMEngine's start-up, its wrapper for distributed models and its mixed
precision take a GPU for granted. The configs stay the same on every host:
`adapt` rewrites what a CPU cannot do, once, before the runner is built.
"""

from contextlib import contextmanager

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.optim import OptimWrapper

from .registry import OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """Mixed precision on a CPU: bfloat16, which needs no loss scale."""

    @contextmanager
    def optim_context(self, model: torch.nn.Module):
        with (
            super().optim_context(model),
            torch.autocast('cpu', dtype=torch.bfloat16),
        ):
            yield


def adapt(cfg: Config):
    """Change in ``cfg`` what this host cannot do, and nothing elsewhere."""
    if get_device() != 'cpu':
        return
    _use_cpu_amp(cfg)
    if cfg.get('launcher', 'none') != 'none':
        _use_gloo(cfg)


def _use_cpu_amp(cfg: Config):
    wrapper = cfg.get('optim_wrapper')
    if wrapper is not None and wrapper.get('type') == 'AmpOptimWrapper':
        wrapper.type = 'CPUAmpOptimWrapper'
        for key in ('loss_scale', 'dtype', 'use_fsdp'):
            wrapper.pop(key, None)


def _use_gloo(cfg: Config):
    # MMEngine would set a CUDA device while opening a process group itself.
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group('gloo')
    # Its default wrapper would pass `device_ids`, which a CPU module refuses.
    wrapper = cfg.setdefault('model_wrapper_cfg', ConfigDict())
    wrapper.setdefault('type', 'MMDistributedDataParallel')
    wrapper.setdefault('broadcast_buffers', False)
    wrapper.setdefault(
        'find_unused_parameters', cfg.get('find_unused_parameters', False)
    )
    wrapper.device_ids = None
    # SyncBN knows only CUDA. The statistics of plain batch norms differ
    # between processes until they are averaged, once before evaluation.
    _replace_type(cfg.model, 'SyncBN', 'BN')
    hooks = cfg.setdefault('custom_hooks', [])
    if not any(hook.get('type') == 'SyncBuffersHook' for hook in hooks):
        hooks.append(dict(type='SyncBuffersHook'))


def _replace_type(node, old: str, new: str):
    """Replace a type everywhere below ``node``."""
    if isinstance(node, dict):
        if node.get('type') == old:
            node['type'] = new
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return
    for child in node:
        _replace_type(child, old, new)
