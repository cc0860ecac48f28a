"""Plain ViTs of timm and MMPretrain, with rules that thin their tokens.

>>> model = timm.create_model('vit_small_patch16_224', pretrained=True)
>>> merging = dict(type='MergedTokens', merge=8 / 196)
>>> merging = [dict(merging, block=block) for block in range(12)]
>>> model = clustr_mm.thin(model, merging, carry=True)
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clustr_mm.backbones.vit import ThinViT
from clustr_mm.checkpoints.layouts import StateDict, convert, revert
from clustr_mm.errors import BAD_ARGUMENTS, UserError, summary
from clustr_mm.layers.reducer import Reducer

TIMM, MMPRETRAIN = 'timm-vit', 'mmpretrain-vit'


class ThinClassifier(nn.Module):
    """A backbone and a linear head: what timm calls a vision transformer.

    Args:
        backbone (ThinViT): It returns one vector an image.
        fc (nn.Module): The head.
    """

    def __init__(self, backbone: ThinViT, fc: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.head = nn.ModuleDict(dict(fc=fc))

    def forward(self, img: Tensor) -> Tensor:
        """Logits [B, K] of images [B, 3, H, W]."""
        return self.head['fc'](self.backbone(img)[-1])


def thin(
    model: nn.Module,
    reducers: Sequence[dict | Reducer] = (),
    carry: bool = False,
) -> nn.Module:
    """A model that computes what this one does, of fewer tokens.

    Without reducers the outputs are the same up to rounding, which is tried
    on a random image.

    Args:
        model (nn.Module): A ``VisionTransformer`` of timm or MMPretrain, or
            a model of MMPretrain that has one as its backbone. It stays as
            it is; weights are copied.
        reducers (Sequence[dict | Reducer]): As of :class:`ThinViT`.
        carry (bool): As of :class:`ThinViT`; ToMe's way.

    Returns:
        nn.Module: A :class:`ThinClassifier` for timm's, a :class:`ThinViT`
        for MMPretrain's backbone, and the same model with that for a backbone
        for its whole models.
    """
    backbone = getattr(model, 'backbone', None)
    if isinstance(backbone, nn.Module):
        # Without a copy of what is replaced.
        copied = copy.deepcopy(model, {id(backbone): nn.Identity()})
        copied.backbone = thin(backbone, reducers, carry)
        return copied
    layout = _layout_of(model)
    make = _of_timm if layout == TIMM else _of_mmpretrain
    with torch.random.fork_rng(devices=[]):
        try:
            ours = make(model)
            _load(ours, model, layout)
            _check_same(ours, model)
        # Whoever puts other parts in than usual gets here.
        except BAD_ARGUMENTS as error:
            raise UserError(
                f'this {type(model).__name__} is no plain ViT, so it cannot '
                f'be thinned: {summary(error)}. Take one with learnt '
                'positions, GELU and layer norms, without registers.'
            ) from error
    trunk = ours.backbone if layout == TIMM else ours
    trunk.carry = carry
    trunk.place_reducers(reducers)
    weight = next(model.parameters())
    ours.to(weight.device, weight.dtype)
    ours.train(model.training)
    return ours


def their_state_dict(model: nn.Module, layout: str) -> StateDict:
    """The weights of a thinned model under the names that they came with.

    Without those of the reducers, which have none.

    Args:
        model (nn.Module): What `thin` has returned.
        layout (str): ``'timm-vit'`` or ``'mmpretrain-vit'``.
    """
    bare = isinstance(model, ThinViT)
    ours = {
        f'backbone.{name}' if bare else name: value
        for name, value in model.state_dict().items()
    }
    theirs = revert(
        {k: v for k, v in ours.items() if '.reducers.' not in k}, layout
    )
    if bare and layout == MMPRETRAIN:
        return {k.removeprefix('backbone.'): v for k, v in theirs.items()}
    return theirs


def _layout_of(model: nn.Module) -> str:
    """Whose model it is, by what it is made of."""
    if type(model).__name__ == 'VisionTransformer':
        if hasattr(model, 'blocks'):
            return TIMM
        if hasattr(model, 'layers'):
            return MMPRETRAIN
    raise UserError(
        f'{type(model).__name__} cannot be thinned: give a VisionTransformer '
        'of timm or MMPretrain, or a model of MMPretrain on one'
    )


def _of_timm(model: nn.Module) -> ThinClassifier:
    pools = {'token': 'cls_token', 'avg': 'avg_featmap'}
    if model.global_pool not in pools:
        raise ValueError(f'global_pool is {model.global_pool!r}')
    block = model.blocks[0]
    backbone = ThinViT(
        arch=dict(
            embed_dims=model.embed_dim,
            num_layers=len(model.blocks),
            num_heads=block.attn.num_heads,
            feedforward_channels=block.mlp.fc1.out_features,
        ),
        img_size=tuple(model.patch_embed.img_size),
        out_type=pools[model.global_pool],
        final_norm=isinstance(model.norm, nn.LayerNorm),
        pool_norm=isinstance(model.fc_norm, nn.LayerNorm),
        layer_scale_init_value=float(not isinstance(block.ls1, nn.Identity)),
        norm_cfg=dict(type='LN', eps=block.norm1.eps),
        drop_path_rate=_drop_path(model.blocks[-1].drop_path1),
        drop_rate=block.mlp.drop1.p,
        attn_drop_rate=block.attn.attn_drop.p,
        **_patches(model, model.patch_embed.proj),
        qkv_bias=block.attn.qkv.bias is not None,
    )
    return ThinClassifier(backbone, copy.deepcopy(model.head))


def _of_mmpretrain(model: nn.Module) -> ThinViT:
    layer = model.layers[0]
    return ThinViT(
        arch=dict(model.arch_settings),
        img_size=tuple(model.img_size),
        out_type=model.out_type,
        out_indices=list(model.out_indices),
        final_norm=model.final_norm,
        layer_scale_init_value=float(
            not isinstance(layer.attn.gamma1, nn.Identity)
        ),
        norm_cfg=dict(type='LN', eps=layer.ln1.eps),
        drop_path_rate=_drop_path(model.layers[-1].attn.out_drop),
        drop_rate=model.drop_after_pos.p,
        attn_drop_rate=layer.attn.attn_drop,
        interpolate_mode=model.interpolate_mode,
        # Theirs leaves all as it is for 0, ours for -1.
        frozen_stages=model.frozen_stages or -1,
        **_patches(model, model.patch_embed.projection),
        qkv_bias=layer.attn.qkv.bias is not None,
    )


def _patches(model: nn.Module, conv: nn.Conv2d) -> dict:
    """What the embedding of the patches is like."""
    side, other = conv.kernel_size
    if side != other or tuple(conv.stride) != (side, side):
        raise ValueError(
            f'patches are {conv.kernel_size}, {conv.stride} apart, and not '
            'squares side by side'
        )
    return dict(
        patch_size=side,
        in_channels=conv.in_channels,
        with_cls_token=model.cls_token is not None,
    )


def _drop_path(module: nn.Module) -> float:
    return float(getattr(module, 'drop_prob', None) or 0)


def _load(ours: nn.Module, theirs: nn.Module, layout: str) -> None:
    """Copy all weights; none may be left over on either side."""
    state_dict = theirs.state_dict()
    bare = isinstance(ours, ThinViT)
    if bare:
        state_dict = {f'backbone.{k}': v for k, v in state_dict.items()}
    state_dict = convert(state_dict, layout)
    if bare:
        state_dict = {
            k.removeprefix('backbone.'): v for k, v in state_dict.items()
        }
    ours.load_state_dict(state_dict)


def _check_same(ours: nn.Module, theirs: nn.Module) -> None:
    """What has no weights, such as an activation, shows in the outputs."""
    theirs = copy.deepcopy(theirs).cpu().float()
    ours.float()
    for model in (ours, theirs):
        model.eval()
    trunk = ours if isinstance(ours, ThinViT) else ours.backbone
    size = [side * trunk.patch_embed.patch_size for side in trunk.grid]
    image = torch.randn(1, trunk.patch_embed.proj.in_channels, *size)
    with torch.no_grad():
        found, expected = ours(image), theirs(image)
    if isinstance(expected, Tensor):
        found, expected = [found], [expected]
    for one, other in zip(found, expected, strict=True):
        off = (one - other).norm() / other.norm().clamp(min=1e-6)
        if not off < 1e-3:
            raise ValueError(f'outputs differ by {off:.2g} of their norm')
