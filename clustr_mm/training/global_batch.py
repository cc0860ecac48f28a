"""Averages over the batch of all processes.

Distributed training averages the gradients of its processes. That is the
gradient of the global batch where a loss is a mean over images, but not where
it divides by what each process counted, or squares what it averaged.
"""

from mmengine.dist import all_reduce, get_world_size, is_distributed
from torch import Tensor
from torch.distributed.nn.functional import all_reduce as differentiable_sum


def global_mean(x: Tensor) -> Tensor:
    """Mean over the processes, through which gradients flow."""
    if not is_distributed():
        return x
    return differentiable_sum(x) / get_world_size()


def global_count(selected: Tensor) -> Tensor:
    """How many are selected, in the mean over the processes; at least 1.

    A sum over what one process selected, divided by this, is its part in the
    mean over what all of them selected.
    """
    count = selected.sum().float()
    all_reduce(count, op='mean')
    return count.clamp_min(1 / get_world_size())
