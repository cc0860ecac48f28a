"""From an image to a map of patch embeddings."""

import torch.nn.functional as F
from mmcv.cnn import ConvModule
from mmengine.model import BaseModule
from torch import Tensor, nn

from .convolution import Conv2d


class PatchEmbed(BaseModule):
    """Cut an image into patches and project each.

    An image whose sides are no multiples of the patch size is padded with
    zeros at the bottom and on the right.

    Args:
        in_channels (int): Channels of the image.
        embed_dims (int): Channels of an embedding.
        patch_size (int): Side of a patch.
        stem_channels (int): Channels of a convolutional stem that halves the
            image before it is cut, as in LV-ViT; 0 for none.
        init_cfg (dict, optional): Initialisation.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        stem_channels: int = 0,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        self.patch_size = patch_size
        self.stem = nn.Identity()
        if stem_channels < 0:
            raise ValueError(
                f'stem_channels must be at least 0, but is {stem_channels}'
            )
        if stem_channels:
            if patch_size % 2:
                raise ValueError(
                    'the stem halves the image, so patch_size must be even, '
                    f'not {patch_size}'
                )
            self.stem = _stem(in_channels, stem_channels)
            in_channels, patch_size = stem_channels, patch_size // 2
        self.proj = Conv2d(
            in_channels, embed_dims, patch_size, stride=patch_size
        )

    def forward(self, img: Tensor) -> Tensor:
        """Embeddings [B, C, h, w] of the patches of ``img`` [B, 3, H, W]."""
        height, width = img.shape[-2:]
        pad = (-width % self.patch_size, -height % self.patch_size)
        if pad[0] or pad[1]:
            img = F.pad(img, (0, pad[0], 0, pad[1]))
        return self.proj(self.stem(img))


def _stem(in_channels: int, channels: int) -> nn.Sequential:
    """Three convolutions, the first with stride 2 (LV-ViT)."""

    def conv(in_channels: int, kernel: int, stride: int) -> ConvModule:
        return ConvModule(
            in_channels,
            channels,
            kernel,
            stride=stride,
            padding=kernel // 2,
            conv_cfg={'type': Conv2d},
            norm_cfg={'type': 'BN'},
        )

    return nn.Sequential(
        conv(in_channels, 7, 2), conv(channels, 3, 1), conv(channels, 3, 1)
    )
