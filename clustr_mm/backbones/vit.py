"""The trunk that the plain ViTs share.

It owns the patches, their positions, the blocks and the outputs. A paper's
model adds a rule that thins the tokens, :class:`~clustr_mm.layers.reducer.
Reducer`, and the blocks at which it acts; without any this is a plain ViT.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule, ModuleList
from mmengine.utils import to_2tuple
from mmengine.utils.dl_utils.parrots_wrapper import _BatchNorm
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from clustr_mm.arguments import check_positive, check_rates, check_types
from clustr_mm.layers.block import LAYER_NORM, Block
from clustr_mm.layers.patch_embed import PatchEmbed
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.provenance import Trail, resize_positions

INIT_LINEAR = {'type': 'TruncNormal', 'layer': 'Linear', 'std': 0.02}
INIT_NORM = {'type': 'Constant', 'layer': 'LayerNorm', 'val': 1.0}


def vit_arch(
    embed_dims: int,
    num_layers: int,
    num_heads: int,
    mlp_ratio: int = 4,
    **more,
) -> dict:
    """Settings of an architecture, as in an ``arch_zoo``."""
    return {
        'embed_dims': embed_dims,
        'num_layers': num_layers,
        'num_heads': num_heads,
        'feedforward_channels': mlp_ratio * embed_dims,
        **more,
    }


@MODELS.register_module()
class ThinViT(BaseModule):
    """A plain vision transformer whose tokens can be thinned.

    Args:
        arch (str | dict): One of ``arch_zoo``, or a dict with ``embed_dims``,
            ``num_layers``, ``num_heads`` and ``feedforward_channels``, and
            maybe ``patch_size``.
        img_size (int | tuple): Usual size of an image. Any other size works
            too: it is padded to whole patches, and position embeddings are
            interpolated.
        patch_size (int, optional): Side of a patch. By default what ``arch``
            says, or 16.
        in_channels (int): Channels of the image.
        out_indices (int | Sequence[int]): Blocks whose output is returned.
        out_type (str): What is returned: ``'cls_token'`` [B, C],
            ``'featmap'`` [B, C, h, w], which has the full resolution
            whatever was thinned, ``'avg_featmap'`` [B, C], its mean, or
            ``'raw'`` [B, N, C], the class token and the tokens left.
        with_cls_token (bool): Whether there is a class token.
        qkv_bias (bool): Whether queries, keys and values have a bias.
        qk_norm (str, optional): See :class:`Attention`.
        drop_rate (float): Dropout of embeddings and of the outputs of
            attention and FFN.
        attn_drop_rate (float): Dropout of the attention probabilities.
        drop_path_rate (float): Stochastic depth of the last block; it grows
            linearly with depth.
        layer_scale_init_value (float): Initial factor of each channel of the
            residual branches; 0 for none.
        residual_scale (float): Constant factor of the residual branches.
        norm_cfg (dict): Normalisation.
        final_norm (bool): Whether the last block's output is normalised.
        pool_norm (bool): Whether ``'avg_featmap'`` is normalised.
        patch_cfg (dict, optional): More arguments of :class:`PatchEmbed`.
        interpolate_mode (str): How position embeddings are interpolated.
        frozen_stages (int): Freeze the embedding and as many blocks, for -1
            nothing.
        norm_eval (bool): Whether batch norms stay in eval mode.
        with_cp (bool): Whether to save memory by recomputing blocks in the
            backward pass.
        init_cfg (dict | list, optional): Initialisation.
    """

    arch_zoo = {
        'deit-tiny': vit_arch(192, 12, 3),
        'deit-small': vit_arch(384, 12, 6),
        'deit-base': vit_arch(768, 12, 12),
        'deit-256': vit_arch(256, 12, 4),
        'deit-e318': vit_arch(318, 12, 6),
        'deit-e252': vit_arch(252, 12, 6),
        'small-14': vit_arch(384, 12, 6, patch_size=14),
    }
    OUT_TYPES = ('cls_token', 'featmap', 'avg_featmap', 'raw')
    INTERPOLATIONS = ('nearest', 'area', 'bilinear', 'bicubic')

    @check_types
    def __init__(
        self,
        arch: str | dict = 'deit-small',
        img_size: int | tuple[int, int] = 224,
        patch_size: int | None = None,
        in_channels: int = 3,
        out_indices: int | Sequence[int] = -1,
        out_type: str = 'cls_token',
        with_cls_token: bool = True,
        qkv_bias: bool = True,
        qk_norm: str | None = None,
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        layer_scale_init_value: float = 0.0,
        residual_scale: float = 1.0,
        norm_cfg: dict = LAYER_NORM,
        final_norm: bool = True,
        pool_norm: bool = True,
        patch_cfg: dict | None = None,
        interpolate_mode: str = 'bicubic',
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        init_cfg: dict | list | None = None,
    ):
        super().__init__(init_cfg or [INIT_LINEAR, INIT_NORM])
        check_rates(
            drop_rate=drop_rate,
            attn_drop_rate=attn_drop_rate,
            drop_path_rate=drop_path_rate,
        )
        check_positive(in_channels=in_channels)
        check_positive(img_size=min(to_2tuple(img_size)))
        self.arch_settings = arch = self._settings(arch)
        self.embed_dims = dims = arch['embed_dims']
        self.num_layers = arch['num_layers']
        self.out_indices = self._indices(out_indices)
        self.out_type = self._checked_out_type(out_type, with_cls_token)
        if interpolate_mode not in self.INTERPOLATIONS:
            raise ValueError(
                f'interpolate_mode must be one of {self.INTERPOLATIONS}, not '
                f'{interpolate_mode!r}'
            )
        self.interpolate_mode = interpolate_mode
        if not -1 <= frozen_stages <= self.num_layers:
            raise ValueError(
                f'frozen_stages must be in -1..{self.num_layers}, the number '
                f'of blocks, but is {frozen_stages}'
            )
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval
        self.with_cp = with_cp

        if patch_size is None:
            patch_size = arch.get('patch_size', 16)
        check_positive(patch_size=patch_size)
        self.patch_embed = PatchEmbed(
            in_channels, dims, patch_size, **(patch_cfg or {})
        )
        self.grid = tuple(
            math.ceil(side / patch_size) for side in to_2tuple(img_size)
        )
        self.num_extra_tokens = int(with_cls_token)
        self.cls_token = _embedding(1, dims) if with_cls_token else None
        self.pos_embed = _embedding(
            math.prod(self.grid) + self.num_extra_tokens, dims
        )
        self._register_load_state_dict_pre_hook(self._fit_positions)
        self.drop_after_pos = nn.Dropout(drop_rate)

        drop_paths = np.linspace(0, drop_path_rate, self.num_layers)
        self.blocks = ModuleList(
            Block(
                dims,
                arch['num_heads'],
                arch['feedforward_channels'],
                qkv_bias=qkv_bias,
                qk_norm=qk_norm,
                drop_rate=drop_rate,
                attn_drop_rate=attn_drop_rate,
                drop_path_rate=rate,
                layer_scale_init_value=layer_scale_init_value,
                residual_scale=residual_scale,
                norm_cfg=norm_cfg,
            )
            for rate in drop_paths.tolist()
        )
        self.norm = self.fc_norm = nn.Identity()
        if final_norm:
            self.norm = build_norm_layer(norm_cfg, dims)[1]
        if pool_norm and out_type == 'avg_featmap':
            self.fc_norm = build_norm_layer(norm_cfg, dims)[1]
        self.place_reducers({})

    def place_reducers(self, reducers: dict[int, Reducer]) -> None:
        """Let reducers act at these blocks, and freeze what shall be."""
        for block in reducers:
            if not 0 <= block < self.num_layers:
                raise ValueError(
                    f'reduce_at must be among the blocks, numbered 0 to '
                    f'{self.num_layers - 1}: no reducer can act at block '
                    f'{block}'
                )
        self.reducers = ModuleList(reducers.values())
        # Which of them acts at a block.
        self._reducer_at = {block: i for i, block in enumerate(reducers)}
        self._freeze_stages()

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """Outputs of ``img`` [B, 3, H, W] at ``out_indices``."""
        return self._run(img, self.needs_trail)[0]

    @property
    def needs_trail(self) -> bool:
        """Whether patches have to be followed for the outputs."""
        return self.out_type in ('featmap', 'avg_featmap')

    def trace(self, img: Tensor) -> tuple[tuple[Tensor, ...], Trail]:
        """The same, and where the patches went."""
        return self._run(img, track=True)

    def _run(
        self, img: Tensor, track: bool
    ) -> tuple[tuple[Tensor, ...], Trail]:
        x, trail = self.embed(img, track)
        outs = []
        for i, block in enumerate(self.blocks):
            x = self.run_block(i, block, x, trail)
            if i in self.out_indices:
                outs.append(self.output(i, x, trail))
        return tuple(outs), trail

    def embed(self, img: Tensor, track: bool) -> tuple[Tensor, Trail]:
        """Tokens [B, N, C] of an image and the start of their trail."""
        fmap = self.patch_embed(img)
        trail = Trail(fmap.shape[2:], track)
        x = fmap.flatten(2).mT
        if self.cls_token is not None:
            cls_token = self.cls_token.expand(x.shape[0], -1, -1)
            x = torch.cat([cls_token, x], 1)
        x = x.contiguous() + resize_positions(
            self.pos_embed,
            self.grid,
            trail.grid,
            self.num_extra_tokens,
            self.interpolate_mode,
        )
        return self.drop_after_pos(x), trail

    def run_block(
        self, i: int, block: Block, x: Tensor, trail: Trail
    ) -> Tensor:
        """A block, and the reducer that acts at it."""
        reducer = place = None
        if i in self._reducer_at:
            reducer = self.reducers[self._reducer_at[i]]
            place = reducer.place
        if place == 'before':
            x = self._reduce(reducer, x, trail)
        x, answer = self._call(
            block.attend,
            x,
            asks=reducer.asks if place == 'between' else None,
            **self.attention_inputs(x, trail),
        )
        if place == 'between':
            x = self._reduce(reducer, x, trail, answer)
        x = self._call(block.feed, x)
        if place == 'after':
            x = self._reduce(reducer, x, trail)
        return x

    def attention_inputs(self, x: Tensor, trail: Trail) -> dict:
        """What attention needs to know of the thinning so far."""
        return {}

    def _call(self, half, x: Tensor, **kwargs):
        if self.with_cp and torch.is_grad_enabled():
            return checkpoint(half, x, use_reentrant=False, **kwargs)
        return half(x, **kwargs)

    def _reduce(
        self,
        reducer: Reducer,
        x: Tensor,
        trail: Trail,
        answer: Tensor | None = None,
    ) -> Tensor:
        """Let a reducer thin the patch tokens."""
        extra = self.num_extra_tokens
        patches = x[:, extra:]
        if not patches.shape[1]:
            return x
        if answer is not None:
            answer = answer[:, extra:]
        thinned = reducer(patches, trail, answer)
        if thinned is patches:
            return x
        return torch.cat([x[:, :extra], thinned], 1) if extra else thinned

    def output(self, i: int, x: Tensor, trail: Trail) -> Tensor:
        """What ``out_type`` says, after block ``i``."""
        norm = self.norm if i == self.num_layers - 1 else nn.Identity()
        if self.out_type == 'raw':
            return norm(x)
        if self.out_type == 'cls_token':
            return norm(x[:, 0])
        # What left early skipped blocks, but not the normalisation.
        bank = norm(trail.bank(x[:, self.num_extra_tokens :]))
        if self.out_type == 'featmap':
            return trail.to_map(bank)
        return self.fc_norm(trail.mean(bank))

    def train(self, mode: bool = True):
        super().train(mode)
        self._freeze_stages()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def _freeze_stages(self) -> None:
        if self.frozen_stages < 0:
            return
        frozen = [self.patch_embed, self.drop_after_pos]
        for i in range(self.frozen_stages):
            frozen.append(self.blocks[i])
            if i in self._reducer_at:
                frozen.append(self.reducers[self._reducer_at[i]])
        if self.frozen_stages >= self.num_layers:
            frozen.append(self.norm)
        for module in frozen:
            module.eval()
            module.requires_grad_(False)
        self.pos_embed.requires_grad = False
        if self.cls_token is not None:
            self.cls_token.requires_grad = False

    def _fit_positions(self, state_dict: dict, prefix: str, *args) -> None:
        """Resize a checkpoint's position embeddings to this model's.

        Those of a grid that is not square are left for the loader to reject.
        """
        key, extra = prefix + 'pos_embed', self.num_extra_tokens
        positions = state_dict.get(key)
        if positions is None or positions.shape == self.pos_embed.shape:
            return
        if not extra and not _is_square(positions.shape[1]):
            # A class token's position is of no use here.
            positions = positions[:, 1:]
        if not _is_square(positions.shape[1] - extra):
            return
        side = math.isqrt(positions.shape[1] - extra)
        state_dict[key] = resize_positions(
            positions, (side, side), self.grid, extra, self.interpolate_mode
        )
        for i, reducer in enumerate(self.reducers):
            reducer.fit(state_dict, f'{prefix}reducers.{i}.', (side, side))

    def get_layer_depth(
        self, param_name: str, prefix: str = ''
    ) -> tuple[int, int]:
        """Depth of a parameter and number of depths, for layer-wise decay."""
        num_depths = self.num_layers + 2
        parts = param_name.removeprefix(prefix).split('.')
        if not param_name.startswith(prefix):
            depth = num_depths - 1
        elif parts[0] in ('cls_token', 'pos_embed', 'patch_embed'):
            depth = 0
        elif parts[0] == 'blocks':
            depth = int(parts[1]) + 1
        elif parts[0] == 'reducers':
            depth = list(self._reducer_at)[int(parts[1])] + 1
        else:
            depth = num_depths - 1
        return depth, num_depths

    def _settings(self, arch: str | dict) -> dict:
        if isinstance(arch, str):
            if arch not in self.arch_zoo:
                raise ValueError(
                    f'{type(self).__name__} has no arch {arch!r}; choose from '
                    f'{list(self.arch_zoo)} or give a dict'
                )
            return self.arch_zoo[arch]
        missing = set(vit_arch(1, 1, 1)) - set(arch)
        if missing:
            raise ValueError(f'arch lacks {sorted(missing)}')
        return arch

    def _indices(self, out_indices: int | Sequence[int]) -> list[int]:
        if isinstance(out_indices, int):
            out_indices = [out_indices]
        for index in out_indices:
            if not -self.num_layers <= index < self.num_layers:
                raise ValueError(
                    f'out_indices has {index}, but there are '
                    f'{self.num_layers} blocks'
                )
        indices = sorted(index % self.num_layers for index in out_indices)
        if not indices or len(set(indices)) < len(indices):
            raise ValueError(
                'out_indices must name one or more blocks, each once, but '
                f'are {list(out_indices)}'
            )
        return indices

    def _checked_out_type(self, out_type: str, with_cls_token: bool) -> str:
        if out_type not in self.OUT_TYPES:
            raise ValueError(
                f'out_type must be one of {self.OUT_TYPES}, not {out_type!r}'
            )
        if out_type == 'cls_token' and not with_cls_token:
            raise ValueError(
                "out_type 'cls_token' needs a class token; choose "
                "'avg_featmap' or set with_cls_token=True"
            )
        return out_type


def check_reduce_at(reduce_at: Sequence[int]) -> None:
    """Raise an error for blocks out of order, or one that comes twice."""
    if list(reduce_at) != sorted(set(reduce_at)):
        raise ValueError(f'reduce_at must increase: {list(reduce_at)}')


def _embedding(num_tokens: int, embed_dims: int) -> nn.Parameter:
    embedding = torch.empty(1, num_tokens, embed_dims)
    return nn.Parameter(nn.init.trunc_normal_(embedding, std=0.02))


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number
