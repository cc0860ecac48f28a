"""A feature pyramid from a single map, for heads that expect one.

Plain vision transformers have one resolution. ViTDet ("Exploring Plain
Vision Transformer Backbones for Object Detection") shows that the other
levels need not come from earlier blocks: scaling the last map up and down is
enough.
"""

import math
from collections.abc import Sequence

import torch.nn.functional as F
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from clustr_mm.layers.convolution import ConvTranspose2d
from clustr_mm.registry import MODELS


class ChannelNorm(nn.LayerNorm):
    """Layer normalisation of the channels of a map [B, C, H, W]."""

    def forward(self, fmap: Tensor) -> Tensor:
        return super().forward(fmap.movedim(1, -1)).movedim(-1, 1)


@MODELS.register_module()
class SimpleFPN(BaseModule):
    """Scale one map to several strides.

    Args:
        in_channels (int): Channels of the map.
        out_channels (int): Channels of every level.
        in_stride (int): Stride of the map.
        strides (Sequence[int]): Strides of the levels: ``in_stride`` times
            or divided by powers of two.
        num_outs (int, optional): Number of levels; those beyond ``strides``
            each halve the one before by pooling. By default there are none.
        init_cfg (dict | list, optional): Initialisation.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 256,
        in_stride: int = 16,
        strides: Sequence[int] = (4, 8, 16, 32),
        num_outs: int | None = None,
        init_cfg: dict | list | None = None,
    ):
        super().__init__(init_cfg)
        self.num_outs = len(strides) if num_outs is None else num_outs
        if self.num_outs < len(strides):
            raise ValueError(
                f'num_outs is {num_outs}, but there are {len(strides)} strides'
            )
        self.in_channels = in_channels
        self.levels = ModuleList(
            nn.Sequential(
                *_rescale(in_channels, in_stride, stride),
                *_smooth(in_channels, in_stride, stride, out_channels),
            )
            for stride in strides
        )

    def forward(self, inputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Levels [B, out_channels, h, w] of a map [B, C, H, W].

        Backbones give a tuple; it must hold a single map.
        """
        fmap = inputs if isinstance(inputs, Tensor) else _only(inputs)
        if fmap.ndim != 4 or fmap.shape[1] != self.in_channels:
            raise ValueError(
                f'SimpleFPN takes a map [B, {self.in_channels}, H, W], not '
                f"{list(fmap.shape)}: set out_type='featmap' in the backbone "
                'and its channels as in_channels'
            )
        # mmcv's operators, RoIAlign above all, read the memory of a map as
        # if it were laid out in the order of its dimensions.
        outs = [level(fmap).contiguous() for level in self.levels]
        while len(outs) < self.num_outs:
            outs.append(F.max_pool2d(outs[-1], 1, stride=2))
        return tuple(outs)


def _only(inputs: Sequence[Tensor]) -> Tensor:
    if len(inputs) != 1:
        raise ValueError(
            f'SimpleFPN takes one map, but the backbone gives {len(inputs)}: '
            'set its out_indices to a single block'
        )
    return inputs[0]


def _octaves(in_stride: int, stride: int) -> int:
    """How many times the map has to be doubled (-: halved)."""
    octaves = math.log2(in_stride / stride)
    if not octaves.is_integer():
        raise ValueError(
            f'a map of stride {in_stride} cannot be scaled to stride '
            f'{stride}: their ratio is no power of two'
        )
    return int(octaves)


def _rescale(channels: int, in_stride: int, stride: int) -> list[nn.Module]:
    """Layers that double or halve a map; doubling halves its channels."""
    octaves = _octaves(in_stride, stride)
    layers = []
    for i in range(octaves):
        if i:
            layers += [ChannelNorm(channels), nn.GELU()]
        layers.append(ConvTranspose2d(channels, channels // 2, 2, 2))
        channels //= 2
    # A map of a single row or column has nothing left to halve.
    layers += [nn.MaxPool2d(2, 2, ceil_mode=True) for _ in range(-octaves)]
    return layers


def _smooth(
    channels: int, in_stride: int, stride: int, out_channels: int
) -> list[nn.Module]:
    """Layers that bring a rescaled map to its channels."""
    channels //= 2 ** max(_octaves(in_stride, stride), 0)
    return [
        nn.Conv2d(channels, out_channels, 1, bias=False),
        ChannelNorm(out_channels),
        nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
        ChannelNorm(out_channels),
    ]
