"""What is said differently while a model is exported.

An exported graph, and ONNX in particular, knows no sizes that depend on data,
no memory that is written to, and no stable sort.
"""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor

# Whether `torch.compile` or an export is at work; torch 2.1 has it elsewhere.
is_compiling = (
    getattr(torch.compiler, 'is_compiling', None) or torch._utils.is_compiling
)


def is_exporting() -> bool:
    """Whether `torch.export` is at work, by itself or for ONNX."""
    # Before torch 2.7 nobody could ask, and nothing is exported.
    ask = getattr(torch.compiler, 'is_exporting', None)
    return ask is not None and ask()


def hide_from_compiler(function: Callable) -> Callable:
    """Let `torch.compile` call a function, and only exports look into it."""
    hidden = torch.compiler.disable(function)

    @wraps(function)
    def call(*args, **kwargs):
        return (function if is_exporting() else hidden)(*args, **kwargs)

    return call


def ranking(score: Tensor) -> Tensor:
    """The order [B, N] of falling scores [B, N], the first of equals first."""
    return score.argsort(dim=1, descending=True, stable=True)
