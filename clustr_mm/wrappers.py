"""Models without what distributes them."""

from mmengine.model import is_model_wrapper
from torch import nn


def unwrapped(model: nn.Module) -> nn.Module:
    """The model itself, of one that is replicated or sharded."""
    return model.module if is_model_wrapper(model) else model
