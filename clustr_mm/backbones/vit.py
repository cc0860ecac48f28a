"""The trunk that the plain ViTs share.

It owns the patches, their positions, the blocks and the outputs. What thins
the tokens is a list of rules, :class:`~clustr_mm.layers.reducer.Reducer`, each
of which knows the block at which it acts; with an empty one this is a plain
ViT. A paper's model is a preset of such a list.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import ModuleList
from mmengine.utils import to_2tuple
from torch import Tensor, nn

from clustr_mm.arguments import check_positive, check_rates, check_types
from clustr_mm.layers.block import LAYER_NORM, Block
from clustr_mm.layers.patch_embed import PatchEmbed
from clustr_mm.layers.reducer import PLACES, Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.trail import Trail, resize_positions
from .backbone import Backbone

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
class ThinViT(Backbone):
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
        qk_norm, qk_alpha: See :class:`Attention`.
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
        interpolate_offset (float): What is added to the number of patches of
            a side in the scale that they are interpolated by: 0.1 in DINOv2.
        frozen_stages (int): Freeze the embedding and as many blocks, for -1
            nothing.
        norm_eval (bool): Whether batch norms stay in eval mode.
        with_cp (bool): Whether to save memory by recomputing blocks in the
            backward pass.
        carry (bool): Whether attention counts a token as often as it has
            patches, by adding the logarithm to its logits.
        detail (bool): Whether a patch of a map keeps what it was beyond its
            token when tokens were merged, fused or pooled: it is its own
            value, and what blocks have added to its token since.
        reducers (Sequence[dict | Reducer]): What thins the tokens:
            configs of :class:`Reducer`, each with the ``block`` at which it
            acts. At a block there is one at most in each place.
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
    unit = 'blocks'
    # With which it hands out full maps, as in a detector, or one vector, as
    # in a classifier.
    map_options = {'out_type': 'featmap'}
    vector_options = {'out_type': 'cls_token'}
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
        qk_alpha: float | None = None,
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
        interpolate_offset: float = 0.0,
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        carry: bool = False,
        detail: bool = True,
        reducers: Sequence[dict | Reducer] = (),
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
        self.arch_settings = arch = self.choose_arch(arch)
        self.embed_dims = dims = arch['embed_dims']
        self.num_layers = arch['num_layers']
        self.out_indices = self.choose_outputs(
            out_indices, self.num_layers, least=-self.num_layers
        )
        self.out_type = self._checked_out_type(out_type, with_cls_token)
        self._choose_interpolation(interpolate_mode, interpolate_offset)
        self.choose_frozen(frozen_stages, norm_eval, self.num_layers)
        self.carry = carry
        self.detail = detail and out_type == 'featmap'

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
        self._register_load_state_dict_pre_hook(self._resize_positions)
        self.drop_after_pos = nn.Dropout(drop_rate)

        drop_paths = np.linspace(0, drop_path_rate, self.num_layers)
        self.blocks = ModuleList(
            Block(
                dims,
                arch['num_heads'],
                arch['feedforward_channels'],
                qkv_bias=qkv_bias,
                qk_norm=qk_norm,
                qk_alpha=qk_alpha,
                drop_rate=drop_rate,
                attn_drop_rate=attn_drop_rate,
                drop_path_rate=rate,
                layer_scale_init_value=layer_scale_init_value,
                residual_scale=residual_scale,
                norm_cfg=norm_cfg,
                with_cp=with_cp,
            )
            for rate in drop_paths.tolist()
        )
        self.norm = self.fc_norm = nn.Identity()
        if final_norm:
            self.norm = build_norm_layer(norm_cfg, dims)[1]
        if pool_norm and out_type == 'avg_featmap':
            self.fc_norm = build_norm_layer(norm_cfg, dims)[1]
        self.place_reducers(reducers)

    def place_reducers(self, reducers: Iterable[dict | Reducer]) -> None:
        """Thin the tokens by these rules alone, and freeze what shall be.

        Args:
            reducers (Iterable[dict | Reducer]): Rules or their configs.
        """
        built = [self._built(reducer) for reducer in reducers]
        # Which of them acts at a block, in each place.
        self._acts_at: dict[tuple[int, str], int] = {}
        for i, reducer in enumerate(built):
            self._check_reducer(reducer)
            self._acts_at[reducer.block, reducer.place] = i
        self.reducers = ModuleList(built)
        self.freeze()

    def _built(self, reducer: dict | Reducer) -> Reducer:
        if isinstance(reducer, Reducer):
            return reducer
        kind = reducer.get('type')
        found = MODELS.get(kind) if isinstance(kind, str) else kind
        if not (inspect.isclass(found) and issubclass(found, Reducer)):
            raise ValueError(
                f'reducers has {kind!r}, which is no Reducer: if it is one '
                'of your own, register it in MODELS and name its module in '
                'custom_imports'
            )
        trunk = dict(
            embed_dims=self.embed_dims,
            grid=self.grid,
            with_cls_token=self.cls_token is not None,
        )
        return MODELS.build({**trunk, **reducer})

    def _check_reducer(self, reducer: Reducer) -> None:
        kind = type(reducer).__name__
        block, place = reducer.block, reducer.place
        if not 0 <= block < self.num_layers:
            raise ValueError(
                f'reducers has a {kind} at block {block}, but the blocks are '
                f'numbered 0 to {self.num_layers - 1}'
            )
        if place not in PLACES:
            raise ValueError(
                f'the place of {kind} must be one of {PLACES}, not {place!r}'
            )
        if (block, place) in self._acts_at:
            raise ValueError(
                f'reducers has two that act {place!r} at block {block}: '
                'leave one out, or have it act at another block'
            )
        if reducer.statistic == 'class_row' and self.cls_token is None:
            raise ValueError(f'{kind} needs the attention of a class token')

    def forward(self, img: Tensor) -> tuple[Tensor, ...]:
        """Outputs of ``img`` [B, 3, H, W] at ``out_indices``."""
        return self._outputs(img)[0]

    @property
    def needs_trail(self) -> bool:
        """Whether patches have to be followed for the outputs."""
        return (
            self.carry
            or self.out_type in ('featmap', 'avg_featmap')
            or any(reducer.needs_trail for reducer in self.reducers)
        )

    @property
    def thins(self) -> bool:
        return len(self.reducers) > 0

    @property
    def hooks(self) -> list[dict]:
        hooks = []
        for reducer in self.reducers:
            hooks += [hook for hook in reducer.hooks if hook not in hooks]
        return hooks

    def trace(self, img: Tensor) -> tuple[tuple[Tensor, ...], Trail]:
        """The same, and where the patches went."""
        return self._outputs(img, track=True)

    def _outputs(
        self, img: Tensor, track: bool = False
    ) -> tuple[tuple[Tensor, ...], Trail]:
        outs = []

        def collect(i: int, x: Tensor, trail: Trail) -> None:
            if i in self.out_indices:
                outs.append(self.output(i, x, trail))

        _, trail = self.run(img, track, collect)
        return tuple(outs), trail

    def run(
        self,
        img: Tensor,
        track: bool = False,
        after_block: Callable[[int, Tensor, Trail], None] | None = None,
    ) -> tuple[Tensor, Trail]:
        """Take an image through the network.

        Args:
            img (Tensor): Images [B, 3, H, W].
            track (bool): Whether to follow the patches even if no output
                and no reducer needs it.
            after_block (Callable, optional): Called after each block with
                its number, the tokens and the trail so far.

        Returns:
            tuple[Tensor, Trail]: All tokens [B, N, C] after the last block,
            not normalised, and where the patches went.
        """
        x, trail = self.embed(img, track or self.needs_trail)
        for i in range(self.num_layers):
            x = self.run_block(i, x, trail)
            if after_block is not None:
                after_block(i, x, trail)
        return x, trail

    def embed(self, img: Tensor, track: bool) -> tuple[Tensor, Trail]:
        """Tokens [B, N, C] of an image and the start of their trail."""
        fmap = self.patch_embed(img)
        trail = Trail(fmap.shape[2:], track)
        x = fmap.flatten(2).mT
        if self.cls_token is not None:
            cls_token = self.cls_token.expand(x.shape[0], -1, -1)
            x = torch.cat([cls_token, x], 1)
        positions = self._resized(self.pos_embed, self.grid, trail.grid)
        return self.drop_after_pos(x.contiguous() + positions), trail

    def _resized(
        self, positions: Tensor, old: tuple[int, int], new: tuple[int, int]
    ) -> Tensor:
        """Position embeddings of another grid of patches."""
        return resize_positions(
            positions,
            old,
            new,
            self.num_extra_tokens,
            self.interpolate_mode,
            self.interpolate_offset,
        )

    def run_block(self, i: int, x: Tensor, trail: Trail) -> Tensor:
        """Block ``i``, and the reducers that act at it."""
        before, between, after = (self._find(i, place) for place in PLACES)
        if before is not None:
            x = self._reduce(before, trail, x)
        attention = self._attention_inputs(x, trail)
        if between is not None:
            attention['statistic'] = between.statistic
            between = partial(self._reduce, between, trail)
        x = self.blocks[i](x, between, **attention)
        if after is not None:
            x = self._reduce(after, trail, x)
        return x

    def _find(self, block: int, place: str) -> Reducer | None:
        number = self._acts_at.get((block, place))
        return None if number is None else self.reducers[number]

    def _attention_inputs(self, x: Tensor, trail: Trail) -> dict:
        """What attention needs to know of the thinning so far."""
        extra, inputs = self.num_extra_tokens, {}
        if trail.decisions:
            inputs['policy'] = F.pad(trail.decisions[-1], (extra, 0), value=1)
        if self.carry and trail.owner is not None:
            sizes = trail.sizes(x[:, extra:])
            inputs['bias'] = F.pad(sizes.log(), (extra, 0))
        return inputs

    def _reduce(
        self,
        reducer: Reducer,
        trail: Trail,
        x: Tensor,
        statistic: Tensor | None = None,
    ) -> Tensor:
        """Let a reducer thin the patch tokens."""
        extra = self.num_extra_tokens
        patches = x[:, extra:]
        if not patches.shape[1]:
            return x
        if statistic is not None:
            statistic = statistic[:, extra:]
        before = trail.so_far() if self.detail else None
        thinned = reducer(patches, trail, statistic)
        if thinned is patches:
            return x
        if before is not None:
            trail.keep_detail(before, patches, thinned)
        return torch.cat([x[:, :extra], thinned], 1) if extra else thinned

    def output(self, i: int, x: Tensor, trail: Trail) -> Tensor:
        """What ``out_type`` says, after block ``i``."""
        norm = self.norm if i == self.num_layers - 1 else nn.Identity()
        if self.out_type == 'raw':
            return norm(x)
        if self.out_type == 'cls_token':
            return norm(x[:, 0])
        x = x[:, self.num_extra_tokens :]
        if trail.detail is not None:
            return trail.fold(norm(trail.patches(x)))
        # What left early skipped blocks, but not the normalisation.
        bank = norm(trail.bank(x))
        if self.out_type == 'featmap':
            return trail.to_map(bank)
        return self.fc_norm(trail.mean(bank))

    def frozen_parts(self) -> Iterable[nn.Module | nn.Parameter]:
        yield from (self.patch_embed, self.drop_after_pos, self.pos_embed)
        if self.cls_token is not None:
            yield self.cls_token
        yield from list(self.blocks)[: self.frozen_stages]
        yield from (r for r in self.reducers if r.block < self.frozen_stages)
        if self.frozen_stages >= self.num_layers:
            yield self.norm

    def _resize_positions(self, state_dict: dict, prefix: str, *args) -> None:
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
        state_dict[key] = self._resized(positions, (side, side), self.grid)
        for i, reducer in enumerate(self.reducers):
            reducer.resize_weights(
                state_dict, f'{prefix}reducers.{i}.', (side, side)
            )

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
            depth = self.reducers[int(parts[1])].block + 1
        else:
            depth = num_depths - 1
        return depth, num_depths

    def choose_arch(self, arch: str | dict) -> dict:
        """Settings of a preset, or those given, with all that is needed."""
        arch = super().choose_arch(arch)
        missing = set(vit_arch(1, 1, 1)) - set(arch)
        if missing:
            raise ValueError(f'arch lacks {sorted(missing)}')
        return arch

    def _choose_interpolation(self, mode: str, offset: float) -> None:
        """How position embeddings are made for another grid of patches."""
        if mode not in self.INTERPOLATIONS:
            raise ValueError(
                f'interpolate_mode must be one of {self.INTERPOLATIONS}, not '
                f'{mode!r}'
            )
        if not 0 <= offset < 1:
            raise ValueError(
                'interpolate_offset is a part of a patch, from 0 to below 1, '
                f'not {offset}'
            )
        self.interpolate_mode = mode
        self.interpolate_offset = offset

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


def check_reduce_at(reduce_at: Sequence[int], num_blocks: int) -> None:
    """Raise an error for blocks out of order or named twice, or no blocks."""
    if list(reduce_at) != sorted(set(reduce_at)):
        raise ValueError(f'reduce_at must increase: {list(reduce_at)}')
    for block in reduce_at:
        if not 0 <= block < num_blocks:
            raise ValueError(
                f'reduce_at must be among the blocks, numbered 0 to '
                f'{num_blocks - 1}: no reducer can act at block {block}'
            )


def check_per_block(name: str, values: Sequence, num_blocks: int) -> None:
    """Raise an error unless there is one value for each block."""
    if len(values) != num_blocks:
        raise ValueError(
            f'{name} has {len(values)} entries, but there are {num_blocks} '
            'blocks: give one for each'
        )


def _embedding(num_tokens: int, embed_dims: int) -> nn.Parameter:
    embedding = torch.empty(1, num_tokens, embed_dims)
    return nn.Parameter(nn.init.trunc_normal_(embedding, std=0.02))


def _is_square(number: int) -> bool:
    return math.isqrt(number) ** 2 == number
