"""What is said differently while a model is exported.

An exported graph, and ONNX in particular, knows no sizes that depend on data,
no memory that is written to, and no stable sort.
"""

import torch
from torch import Tensor


def is_exporting() -> bool:
    """Whether `torch.export` is at work, by itself or for ONNX."""
    # Before torch 2.7 nobody could ask, and nothing is exported.
    ask = getattr(torch.compiler, 'is_exporting', None)
    return ask is not None and ask()


def ranking(score: Tensor) -> Tensor:
    """The order [B, N] of falling scores [B, N], the first of equals first."""
    if is_exporting():
        # So it is with ONNX's TopK, though not with torch's.
        return score.topk(score.shape[1]).indices
    return score.argsort(dim=1, descending=True, stable=True)
