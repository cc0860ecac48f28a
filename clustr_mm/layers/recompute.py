"""Less memory in training, for the price of another forward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recompute(function: Callable, *args, **kwargs) -> Any:
    """Call a function, and again in the backward pass.

    Nothing that it computes is kept for that. Without gradients, in
    whichever mode the model is, it is an ordinary call.
    """
    if torch.is_grad_enabled():
        return checkpoint(function, *args, use_reentrant=False, **kwargs)
    return function(*args, **kwargs)
