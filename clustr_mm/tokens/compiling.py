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


def may_look(x: Tensor) -> bool:
    """Whether what is done next may depend on the values of ``x``.

    A compiler knows none, and a device would have to be waited for.
    """
    return x.device.type == 'cpu' and not is_compiling()


def as_operator(schema: str, fake: Callable) -> Callable:
    """Let `torch.compile` see a function as a single operator.

    Its loops would be unrolled, and what its sizes depend on is not known to
    a compiler. Exports look into it.

    Args:
        schema (str): What the function takes and returns.
        fake (Callable): Gives, for the same arguments, tensors like those
            that it returns, whatever is in them.
    """

    def decorate(function: Callable) -> Callable:
        make = getattr(torch.library, 'custom_op', None)
        if make is None:  # before torch 2.4
            operator = torch.compiler.disable(function)
        else:
            name = f'clustr_mm::{function.__name__.strip("_")}'
            operator = make(name, function, mutates_args=(), schema=schema)
            operator.register_fake(fake)

        @wraps(function)
        def call(*args):
            hides = is_compiling() and not is_exporting()
            return (operator if hides else function)(*args)

        return call

    return decorate


def ranking(score: Tensor) -> Tensor:
    """The order [B, N] of falling scores [B, N], the first of equals first."""
    return score.argsort(dim=1, descending=True, stable=True)
