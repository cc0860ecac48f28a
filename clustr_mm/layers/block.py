"""The transformer block of the plain ViTs, in two halves."""

from collections.abc import Callable

import torch
from mmcv.cnn import build_norm_layer
from mmcv.cnn.bricks import DropPath
from mmcv.cnn.bricks.scale import LayerScale
from mmengine.model import BaseModule
from torch import Tensor, nn

from .attention import Attention
from .linear import Linear
from .recompute import recompute

LAYER_NORM = {'type': 'LN', 'eps': 1e-6}


class Mlp(BaseModule):
    """Two linear layers with a GELU between them."""

    def __init__(
        self,
        embed_dims: int,
        feedforward_channels: int,
        drop_rate: float = 0.0,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        self.fc1 = Linear(embed_dims, feedforward_channels)
        self.act = nn.GELU()
        self.fc2 = Linear(feedforward_channels, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class Block(BaseModule):
    """Attention and FFN, between which tokens may leave.

    Args:
        embed_dims (int): Number of channels.
        num_heads (int): Number of heads.
        feedforward_channels (int): Hidden channels of the FFN.
        qkv_bias (bool): Whether queries, keys and values have a bias.
        qk_norm, qk_alpha: See :class:`Attention`.
        drop_rate (float): Dropout of the outputs of attention and FFN.
        attn_drop_rate (float): Dropout of the attention probabilities.
        drop_path_rate (float): Stochastic depth.
        layer_scale_init_value (float): Initial factor of each channel of
            the residual branches; 0 for none.
        residual_scale (float): Constant factor of the residual branches.
        norm_cfg (dict): Normalisation.
        with_cp (bool): Whether to recompute both halves in the backward
            pass. What acts between them runs once, and reports once.
        init_cfg (dict, optional): Initialisation.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        feedforward_channels: int,
        qkv_bias: bool = True,
        qk_norm: str | None = None,
        qk_alpha: float | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale_init_value: float = 0.0,
        residual_scale: float = 1.0,
        norm_cfg: dict = LAYER_NORM,
        with_cp: bool = False,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)

        def layer_scale() -> nn.Module:
            if not layer_scale_init_value:
                return nn.Identity()
            return LayerScale(embed_dims, scale=layer_scale_init_value)

        self.residual_scale = residual_scale
        self.with_cp = with_cp
        self.norm1 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.attn = Attention(
            embed_dims,
            num_heads,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            qk_alpha=qk_alpha,
            attn_drop_rate=attn_drop_rate,
            drop_rate=drop_rate,
        )
        self.ls1 = layer_scale()
        self.norm2 = build_norm_layer(norm_cfg, embed_dims)[1]
        self.mlp = Mlp(embed_dims, feedforward_channels, drop_rate)
        self.ls2 = layer_scale()
        self.drop_path = DropPath(drop_path_rate)

    def forward(
        self,
        x: Tensor,
        between: Callable[[Tensor, Tensor | None], Tensor] | None = None,
        **attention,
    ) -> Tensor:
        """Tokens [B, N, C] after both halves.

        Args:
            x (Tensor): Tokens [B, N, C].
            between (Callable, optional): What becomes of the tokens between
                the halves, given them and the statistic of the attention.
            attention: Arguments of :class:`Attention`.
        """
        x, statistic = self._run(self.attend, x, **attention)
        if between is not None:
            x = between(x, statistic)
        return self._run(self.feed, x)

    def _run(self, half: Callable, x: Tensor, **kwargs):
        if self.with_cp:
            return recompute(half, x, **kwargs)
        return half(x, **kwargs)

    def attend(self, x: Tensor, **kwargs) -> tuple[Tensor, Tensor | None]:
        """The attention half; arguments and statistic of
        :class:`Attention`."""
        out, statistic = self.attn(self.norm1(x), **kwargs)
        return self._add(x, self.ls1(out)), statistic

    def feed(self, x: Tensor) -> Tensor:
        """The FFN half."""
        return self._add(x, self.ls2(self.mlp(self.norm2(x))))

    def _add(self, x: Tensor, out: Tensor) -> Tensor:
        return torch.add(x, self.drop_path(out), alpha=self.residual_scale)
