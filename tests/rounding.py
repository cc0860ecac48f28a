"""Matrix products whose last bits are others, as on another processor."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ATEN = torch.ops.aten
# The place of the two factors among the arguments.
PRODUCTS = {
    ATEN.mm.default: 0,
    ATEN.bmm.default: 0,
    ATEN.addmm.default: 1,
    ATEN.baddbmm.default: 1,
    ATEN.convolution.default: 0,
}


class OtherRounding(TorchDispatchMode):
    """Put every product off by up to a rounding error of its terms.

    Which way is drawn from torch's generator, for each number by itself, so
    that products of identical rows differ.
    """

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = function(*args, **kwargs)
        if function not in PRODUCTS:
            return out
        first = PRODUCTS[function]
        terms = [x.abs() if isinstance(x, torch.Tensor) else x for x in args]
        size = function(*terms, **{key: abs(x) for key, x in kwargs.items()})
        noise = (2 * torch.rand_like(size) - 1) * size
        eps = torch.finfo(args[first].dtype).eps
        return torch.where(size.isfinite(), out + eps * noise, out)
