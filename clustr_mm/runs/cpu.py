"""What a host without an accelerator needs so that any config runs on it.

MMEngine's start-up, its wrapper for distributed models and its mixed
precision take a GPU for granted. The configs stay the same on every host:
the steps here change what a CPU cannot do, once, before the runner is built,
and nothing elsewhere.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import all_reduce_params, is_distributed
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner

from clustr_mm import configs
from clustr_mm.registry import HOOKS, OPTIM_WRAPPERS
from clustr_mm.toolboxes import toolbox_of


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
    def optim_context(self, model: torch.nn.Module) -> Iterator[None]:
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
    running = []  # its calls, of which one may be inside of another

    def enter(module, args):
        running.append(_bfloat16())
        running[-1].__enter__()

    def leave(module, args, outs):
        running.pop().__exit__(None, None, None)
        return _as_float32(outs)

    handles = [
        module.register_forward_pre_hook(enter),
        module.register_forward_hook(leave),
    ]
    try:
        yield
    finally:
        while running:  # one that has failed
            running.pop().__exit__(None, None, None)
        for handle in handles:
            handle.remove()


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

    def after_train_iter(self, runner: Runner, *args, **kwargs) -> None:
        all_reduce_params(runner.model.buffers(), op='mean')


def cpu_mixed_precision(cfg: Config) -> Config:
    """bfloat16 on a CPU, for what has it there."""
    wrapper = cfg.get('optim_wrapper')
    if get_device() != 'cpu':
        return cfg
    if configs.type_of(wrapper) != 'AmpOptimWrapper':
        return cfg
    wrapper.type = 'CPUAmpOptimWrapper'
    for key in ('loss_scale', 'dtype', 'use_fsdp'):
        wrapper.pop(key, None)
    parts = toolbox_of(cfg).mixed_parts
    if parts is not None:
        wrapper.parts = parts
    return cfg


def cpu_distribution(cfg: Config) -> Config:
    """Processes that exchange between CPUs what they have."""
    if get_device() != 'cpu' or cfg.get('launcher', 'none') == 'none':
        return cfg
    env = cfg.setdefault('env_cfg', ConfigDict())
    env.setdefault('dist_cfg', ConfigDict()).backend = 'gloo'
    # MMEngine's wrapper would pass `device_ids`, which a CPU module refuses.
    wrapper = cfg.setdefault('model_wrapper_cfg', ConfigDict())
    wrapper.setdefault('type', 'MMDistributedDataParallel')
    wrapper.setdefault('broadcast_buffers', False)
    wrapper.setdefault(
        'find_unused_parameters', cfg.get('find_unused_parameters', False)
    )
    wrapper.device_ids = None
    # SyncBN knows only CUDA.
    for _, part in configs.walk(cfg.model):
        if part.get('type') == 'SyncBN':
            part['type'] = 'BN'
    configs.add_hook(cfg, 'AverageBuffersHook')
    # Metrics gather by messages, which gloo sends between CPUs as well: the
    # alternative, files in the working folder, needs one that hosts share.
    for key in ('val_evaluator', 'test_evaluator'):
        for metric in _metrics(cfg.get(key)):
            metric.collect_device = 'gpu'
    return cfg


def open_process_group(backend: str) -> None:
    """Open it on a CPU, where MMEngine would set a CUDA device for that."""
    if get_device() == 'cpu' and not is_distributed():
        torch.distributed.init_process_group(backend)


def _metrics(evaluator) -> list:
    """The metrics of one, of a list, or of an evaluator's config."""
    if evaluator is None:
        return []
    if isinstance(evaluator, (list, tuple)):
        return list(evaluator)
    return _metrics(evaluator.get('metrics', [evaluator]))
