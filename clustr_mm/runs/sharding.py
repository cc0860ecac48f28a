"""Models whose parameters are sharded over the processes (FSDP)."""

from typing import Any

import torch
from mmengine._strategy import FSDPStrategy
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.optim import BaseOptimWrapper, build_optim_wrapper
from mmengine.registry import FUNCTIONS, STRATEGIES
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp._common_utils import FSDP_WRAPPED_MODULE

from clustr_mm.backbones.clustr import ClusTRBlock
from clustr_mm.layers.block import Block
from clustr_mm.outputs import complete_file
from .cpu import open_process_group


@FUNCTIONS.register_module()
def block_by_block(
    module: nn.Module, recurse: bool, nonwrapped_numel: int
) -> bool:
    """Which modules gather their parameters on their own."""
    return recurse or isinstance(module, (Block, ClusTRBlock))


@STRATEGIES.register_module()
class ShardingStrategy(FSDPStrategy):
    """MMEngine's, with the optimizer that the config describes.

    An optimizer that is built from sharded parameters takes all of them for
    vectors, which most configs do not decay, and does not find those that a
    rule names by a block. So it is built before.
    """

    def _setup_distributed(
        self, launcher: str, backend: str = 'nccl', **kwargs
    ) -> None:
        open_process_group(backend)
        super()._setup_distributed(launcher, backend, **kwargs)

    def prepare(
        self,
        model: nn.Module | dict,
        *,
        optim_wrapper: BaseOptimWrapper | dict | None = None,
        **kwargs,
    ) -> Any:
        self._wanted = optim_wrapper
        return super().prepare(model, optim_wrapper=optim_wrapper, **kwargs)

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        model = super().build_model(model)
        if self._wanted is not None:
            cfg = dict(self._wanted)
            if cfg.get('type') == 'AmpOptimWrapper':
                cfg.setdefault('use_fsdp', True)
            self._wanted = build_optim_wrapper(model, cfg)
        return model

    def _wrap_model(self, model: nn.Module) -> nn.Module:
        if get_device() == 'cpu':
            # MMEngine would name a GPU. And what is offloaded from a CPU to
            # the CPU is freed once it is gathered.
            self.model_wrapper['device_id'] = torch.device('cpu')
            self.state_dict_config.offload_to_cpu = False
            self.optim_state_dict_config.offload_to_cpu = False
        return super()._wrap_model(model)

    def build_optim_wrapper(
        self, optim_wrapper: dict, model: nn.Module
    ) -> BaseOptimWrapper:
        sharded = {
            name.replace(f'{FSDP_WRAPPED_MODULE}.', ''): param
            for name, param in model.named_parameters()
        }
        for group in self._wanted.optimizer.param_groups:
            names = [self.id_to_name[id(param)] for param in group['params']]
            group['params'] = [sharded[name] for name in names]
        return self._wanted

    def save_checkpoint(self, filename: str, **kwargs) -> None:
        if not is_main_process() or not self._is_full_state_dict():
            super().save_checkpoint(filename, **kwargs)
            return
        with complete_file(filename) as part:
            super().save_checkpoint(str(part), **kwargs)

    def model_state_dict(self) -> dict[str, torch.Tensor]:
        # Without what FSDP notes in its tensors: it is more than data.
        state_dict = super().model_state_dict()
        return {name: value.detach() for name, value in state_dict.items()}

    def load_optim_state_dict(self, state_dict: dict) -> None:
        # By name: MMEngine has the order of torch 2.0.
        optimizer = self.optim_wrapper.optimizer
        state_dict = FullyShardedDataParallel.optim_state_dict_to_load(
            model=self.model, optim=optimizer, optim_state_dict=state_dict
        )
        self.optim_wrapper.load_state_dict(state_dict)
