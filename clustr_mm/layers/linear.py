"""Linear layers that are fast on all CPUs."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Linear):
    """A linear layer that, on a CPU, predicts as a 1 x 1 convolution.

    There, torch leaves float32 products to MKL and convolutions to oneDNN.
    MKL uses only a part of the vector units of processors that are not
    Intel's, and takes up to twice the time. In training it is the other way
    round: gradients of convolutions are slow.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self._suits_onednn(x):
            return super().forward(x)
        # Tokens as a column of pixels, channels last.
        column = x.reshape(1, -1, 1, self.in_features).permute(0, 3, 1, 2)
        out = F.conv2d(column, self.weight[..., None, None], self.bias)
        return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)

    @staticmethod
    def _suits_onednn(x: Tensor) -> bool:
        return (
            not torch.is_grad_enabled()
            and x.device.type == 'cpu'
            and x.dtype == torch.float32
            and x.numel() > 0
            and torch.backends.mkl.is_available()
            and torch.backends.mkldnn.is_available()
        )
