"""What the torch at hand can do; what it cannot is not tested there."""

import warnings

import pytest
import torch
import torch.nn.functional as F


def _computes_in_float16() -> bool:
    x = torch.ones(1, 1, 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            F.conv2d(x.half(), x.half())
            with torch.autocast('cpu', torch.float16):
                return F.conv2d(x, x).dtype == torch.float16
        except RuntimeError:
            return False


# Both came with torch 2.4.
_IS_NEW = hasattr(torch.library, 'custom_op')
one_graph = pytest.mark.skipif(
    not _IS_NEW, reason='this torch compiles models in pieces'
)
cpu_shards = pytest.mark.skipif(
    not _IS_NEW, reason='this torch shards nothing on a CPU'
)
CAN_EXPORT = hasattr(torch.compiler, 'is_exporting')
exports = pytest.mark.skipif(
    not CAN_EXPORT, reason='exporting needs torch 2.7'
)
CAN_FLOAT16 = _computes_in_float16()
float16 = pytest.param(
    torch.float16,
    marks=pytest.mark.skipif(
        not CAN_FLOAT16,
        reason='this torch does not compute in float16 on a CPU',
    ),
)
LOW_PRECISIONS = [torch.bfloat16] + [torch.float16] * CAN_FLOAT16
