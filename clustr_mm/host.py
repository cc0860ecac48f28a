"""What a host without an accelerator needs so that any config runs on it.

MMEngine's start-up, its wrapper for distributed models and its mixed
precision take a GPU for granted. The configs stay the same on every host:
`adapt` rewrites what a CPU cannot do, once, before the runner is built.
"""

from collections.abc import Sequence
from contextlib import ExitStack, contextmanager

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import all_reduce_params
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from .registry import HOOKS, OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """Mixed precision on a CPU: bfloat16, which needs no loss scale.

    Args:
        parts (Sequence[str], optional): Names of the modules that run in
            mixed precision. By default all do.
        kwargs: Arguments of ``OptimWrapper``.
    """

    def __init__(self, *args, parts: Sequence[str] | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.parts = parts

    @contextmanager
    def optim_context(self, model: torch.nn.Module):
        with super().optim_context(model), ExitStack() as stack:
            if self.parts is None:
                stack.enter_context(_bfloat16())
            else:
                for name, module in model.named_modules():
                    if name.rpartition('.')[2] in self.parts:
                        stack.enter_context(_mixed(module))
            yield


def _bfloat16():
    return torch.autocast('cpu', dtype=torch.bfloat16)


@contextmanager
def _mixed(module: torch.nn.Module):
    """Run a module in bfloat16; what it hands out is in float32."""
    forward, own = module.forward, vars(module).get('forward')

    def mixed_forward(*args, **kwargs):
        with _bfloat16():
            outs = forward(*args, **kwargs)
        return _as_float32(outs)

    module.forward = mixed_forward
    try:
        yield
    finally:
        if own is None:
            del module.forward  # the class has it
        else:
            module.forward = own


def _as_float32(outs):
    """Tensors in float32, also those inside of tuples and lists."""
    if isinstance(outs, torch.Tensor):
        return outs.float() if outs.dtype == torch.bfloat16 else outs
    if isinstance(outs, (tuple, list)):
        return type(outs)(_as_float32(out) for out in outs)
    return outs


@HOOKS.register_module()
class AverageBuffersHook(Hook):
    """Average the statistics of plain batch norms over the processes.

    After each iteration, before a checkpoint is written: what is saved is
    then what is evaluated, in every process.
    """

    def after_train_iter(self, runner: Runner, *args, **kwargs):
        all_reduce_params(runner.model.buffers(), op='mean')


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
        # What follows has no bfloat16 on a CPU: mmcv's NMS and RoIAlign, and
        # MMPose's accuracy, which goes through NumPy.
        if cfg.get('default_scope') in ('mmdet', 'mmpose'):
            wrapper.parts = ('backbone', 'neck')


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
    # SyncBN knows only CUDA.
    _replace_type(cfg.model, 'SyncBN', 'BN')
    # A config stores copies of lists, which must be complete by then.
    hooks = cfg.get('custom_hooks') or []
    cfg.custom_hooks = [*hooks, dict(type='AverageBuffersHook')]
    # Metrics gather by messages, which gloo sends between CPUs as well: the
    # alternative, files in the working folder, needs one that hosts share.
    for key in ('val_evaluator', 'test_evaluator'):
        for metric in _metrics(cfg.get(key)):
            metric.collect_device = 'gpu'


def _metrics(evaluator) -> list:
    """The metrics of one, of a list, or of an evaluator's config."""
    if evaluator is None:
        return []
    if isinstance(evaluator, (list, tuple)):
        return list(evaluator)
    return _metrics(evaluator.get('metrics', [evaluator]))


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
