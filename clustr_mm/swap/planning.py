"""What changes in a config when its backbone does."""

import inspect
import math
from dataclasses import dataclass, field

from mmengine.config import Config

from clustr_mm.backbones.backbone import Backbone
from clustr_mm.configs import type_of
from clustr_mm.errors import UserError
from clustr_mm.registry import MODELS
from clustr_mm.toolboxes import Toolbox, toolbox_of
from .probing import (
    Output,
    StockError,
    after,
    options_of,
    outputs_of,
    outputs_of_ours,
)

STRIDES = (4, 8, 16, 32)
FPN_CHANNELS = 256
# Necks that make a pyramid of a plain ViT's maps, in MMSegmentation: they
# belong to the backbone.
PYRAMIDS = ('MultiLevelNeck', 'Feature2Pyramid')
# What certain parts of a model need and none of our backbones has.
IMPOSSIBLE = {
    'DeiTClsHead': 'the token that DeiT distils to',
    # Unless their distillation is off.
    'LeViTClsHead': 'to be distilled, which MMPretrain cannot do',
    'EfficientFormerClsHead': 'to be distilled, which MMPretrain cannot do',
    'RFP': 'the picture, of which a backbone of its own makes maps',
    'SSDNeck': "the old backbone's own channels, which it continues",
    'CPMHead': 'several maps of the same stride, one for each refinement',
    'MSPNHead': 'several maps of the same stride, one for each refinement',
    'MLANeck': 'several maps of the same stride, of blocks of a plain ViT',
    'DDRHead': "the maps of both of the old backbone's branches",
    'PIDHead': "the maps of all of the old backbone's branches",
}


# Of pose heads, by option: what an added deconvolution has.
DECONVOLUTIONS = dict(
    deconv_out_channels=256, deconv_kernel_sizes=4, deconv_num_groups=16
)


@dataclass
class Maps:
    """What the parts behind a backbone look at, before and after the swap."""

    old: list[Output]
    new: list[Output]

    def new_inputs(self, part: dict) -> dict:
        """New values of what a neck or a head says about its inputs."""
        changes = dict(in_channels=self.channels(part))
        if 'in_index' in part and len(self.new) == 1:
            many = isinstance(part['in_index'], (list, tuple))
            changes['in_index'] = [0] if many else 0
        if 'c1_in_channels' in part:
            changes['c1_in_channels'] = self.new[0].channels
        return changes

    def channels(self, part: dict) -> int | list[int] | tuple[int, ...]:
        """The channels of the maps that a part of the model looks at, as a
        list or a tuple as they were: FastFCN's neck takes tuples alone."""
        in_channels, index = part['in_channels'], part.get('in_index')
        last = len(self.new) - 1
        many = isinstance(in_channels, (list, tuple))
        wanted = in_channels if many else [in_channels]
        if index is None:
            index = self._places(wanted) or (
                range(len(wanted)) if many else [last]
            )
        elif isinstance(index, int):
            index = [index]
        found = [self.new[min(i, last)].channels for i in index]
        return type(in_channels)(found) if many else found[0]

    def _places(self, channels: list[int]) -> list[int]:
        """Which maps are meant, if their channels tell; some necks begin with
        the deepest or do without the first."""
        known = [output.channels for output in self.old]
        is_unique = len(set(known)) == len(known) == len(self.new)
        if not is_unique or not set(channels) <= set(known):
            return []
        return [known.index(number) for number in channels]


@dataclass
class Swap:
    """What replaces parts of a config, and what to tell the user of it."""

    settings: dict = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def plan(cfg: Config, backbone: dict, old: list[Output] | None = None) -> Swap:
    """What has to change in a config for a new backbone.

    Args:
        cfg (Config): The config.
        backbone (dict): The new backbone.
        old (list[Output], optional): What the one that is there hands out, if
            that is not to be found out.
    """
    model, toolbox = cfg.model, toolbox_of(cfg)
    if 'backbone' not in model:
        raise UserError(
            'this config has no model.backbone to replace: the model is a '
            f'{type_of(model)}'
        )
    if not cfg.get('default_scope'):
        raise StockError(
            'this config has no default_scope, and nobody knows whose '
            f'{type_of(model)} it is: inherit from one that has'
        )
    _refuse(model)
    old = old or outputs_of(cfg)
    vectors = [output.stride is None for output in old]
    is_averaged = type_of(model.get('neck')) == 'GlobalAveragePooling'
    if toolbox.is_classifier and (all(vectors) or is_averaged):
        return _plan_classifier(model, backbone, toolbox)
    if any(vectors):
        raise UserError(
            f'{type_of(model.backbone)} hands out vectors, and it is not '
            f'known what {type_of(model)} does with them'
        )
    return _plan_dense(model, backbone, old, toolbox)


def _refuse(model: dict):
    """Raise an error if a part needs what none of the backbones has."""
    if 'shared_head' in model.get('roi_head', {}):
        raise UserError(
            "roi_head.shared_head is the old backbone's last stage: there is "
            'no such stage in ours. Start from a config with an FPN'
        )
    for key, node in model.items():
        for part in node if isinstance(node, list) else [node]:
            needed = IMPOSSIBLE.get(type_of(part))
            if needed and part.get('distillation', True):
                raise UserError(
                    f'model.{key} is a {type_of(part)}, which needs {needed}'
                )


def class_of(backbone: dict) -> type[Backbone] | None:
    """The class of a config's backbone, if it is one of ours."""
    found = MODELS.get(str(backbone.get('type')))
    is_ours = inspect.isclass(found) and issubclass(found, Backbone)
    return found if is_ours else None


def _plan_classifier(model: dict, backbone: dict, toolbox: Toolbox) -> Swap:
    """A classifier that looks at one vector."""
    neck, head = model.get('neck'), model.get('head')
    if not head or 'in_channels' not in head:
        raise UserError(
            f'model.head is {type_of(head)}, which has no in_channels to tell '
            'what it is fed'
        )
    kind = class_of(backbone)
    if kind.is_pyramid:
        backbone = dict(backbone, out_indices=(3,))
        new_neck = _new_neck(model, type='GlobalAveragePooling')
    else:
        options = kind.vector_options
        if not backbone.get('with_cls_token', True):
            options = dict(out_type='avg_featmap')
        backbone = dict(backbone, **options)
        new_neck = None
    swap = Swap()
    _set_backbone(swap, model, backbone)
    # One that averages maps, and not tokens as EfficientFormer's.
    is_kept = type_of(neck) == type_of(new_neck) and (
        neck is None or neck.get('dim', 2) == 2
    )
    if not is_kept:
        swap.settings['model']['neck'] = new_neck
        swap.notes.append(
            f'model.neck: {type_of(neck)} -> {type_of(new_neck)}, as this '
            f'backbone hands out {"a map" if new_neck else "a vector"}'
        )
    channels = outputs_of_ours(backbone, toolbox.scope)[-1].channels
    _set_channels(swap, 'head', head, Maps([], [Output(channels, None)]))
    return swap


def _plan_dense(
    model: dict, backbone: dict, old: list[Output], toolbox: Toolbox
) -> Swap:
    """A model that looks at one map or several."""
    swap = Swap()
    neck = model.get('neck')
    if type_of(neck) in PYRAMIDS:
        old, neck = after(neck, old, toolbox.scope), None
    if len(old) > len(STRIDES):
        raise UserError(
            f'{type_of(model)} uses {len(old)} maps of its backbone, of '
            f'strides {[o.stride for o in old]}; there are none but one each '
            f'of strides {list(STRIDES)}'
        )
    indices = _levels(old, toolbox.counts_on_strides)
    strides = [STRIDES[i] for i in indices]
    kind = class_of(backbone)
    if kind.is_pyramid:
        options = kind.large_options if toolbox.has_large_images else {}
        backbone = dict(backbone, out_indices=indices, **options)
    else:
        backbone = dict(backbone, **kind.map_options)
    new = outputs_of_ours(backbone, toolbox.scope)
    _set_backbone(swap, model, backbone)
    if toolbox.counts_on_strides:
        is_enough = [output.stride for output in new] == strides
    else:
        is_enough = len(new) == len(old) or not _needs_pyramid(model, neck)
    if is_enough:
        _note_strides(swap, old, new)
        _set_necks(swap, model, neck, [], Maps(old, new))
    elif type_of(neck) == 'FPN':
        _replace_fpn(swap, neck, new[0], strides)
        return swap
    else:
        pyramid, new = _pyramid(swap, new[0], strides)
        _set_necks(swap, model, neck, [pyramid], Maps(old, new))
    _chain_necks(swap, model, toolbox)
    maps = _behind_neck(neck, Maps(old, new), toolbox.scope)
    if maps:
        _set_heads(swap, model, maps, toolbox.scope)
    return swap


def _behind_neck(neck, maps: Maps, scope: str) -> Maps | None:
    """What the heads look at, unless it is what they saw before."""
    if neck is None:
        return maps
    fed = neck
    if _has_channels(neck):
        if isinstance(neck, list) or neck.get('out_channels') is not None:
            return None
        # Some necks hand on maps as they are, or as wide as they are.
        fed = dict(neck, in_channels=maps.channels(neck))
    seen = Maps(after(neck, maps.old, scope), after(fed, maps.new, scope))
    old, new = ([o.channels for o in outs] for outs in (seen.old, seen.new))
    return None if fed is not neck and old == new else seen


def _levels(old: list[Output], exact: bool) -> tuple[int, ...]:
    """Which of the strides 4 to 32 stand for the old maps.

    A single map is the deepest one, unless the stride is to be ``exact``. Four
    maps are all of them: in a dilated network, the deeper ones have the stride
    of a shallower one.
    """
    strides = [output.stride for output in old]
    if len(old) == 1 and not exact:
        return (3,)
    if len(old) == len(STRIDES) and strides == sorted(strides) and not exact:
        return (0, 1, 2, 3)
    if strides == sorted(set(strides)) and set(strides) <= set(STRIDES):
        return tuple(STRIDES.index(stride) for stride in strides)
    raise UserError(
        f'the model needs maps of strides {strides}; there are none but one '
        f'each of strides {list(STRIDES)}'
    )


def _needs_pyramid(model: dict, neck) -> bool:
    """Whether any part looks at more than one map."""
    if neck is not None:
        return True
    heads = []
    for key, node in model.items():
        if key not in ('backbone', 'neck'):
            heads += node if isinstance(node, list) else [node]
    return any(
        isinstance(head, dict)
        and (
            isinstance(head.get('in_channels'), (list, tuple))
            or 'c1_in_channels' in head
        )
        for head in heads
    )


def _set_backbone(swap: Swap, model: dict, backbone: dict):
    swap.settings['model'] = dict(backbone=dict(_delete_=True, **backbone))
    swap.notes.append(
        f'model.backbone: {type_of(model["backbone"])} -> {backbone["type"]}; '
        'its settings and its weights are dropped'
    )
    given = ['pretrained'] if model.get('pretrained') else []
    if type_of(model.get('init_cfg')) == 'Pretrained':
        given.append('init_cfg')
    for key in given:
        swap.settings['model'][key] = None
        swap.notes.append(f'model.{key}: dropped, of the old backbone')


def _new_neck(model: dict, **settings) -> dict:
    """A neck that keeps nothing of the old one.

    MMEngine asks for the mark wherever there is one, even None; elsewhere it
    would take it for an option.
    """
    deletes = dict(_delete_=True) if 'neck' in model else {}
    return dict(deletes, **settings)


def _replace_fpn(swap: Swap, fpn: dict, fmap: Output, strides: list[int]):
    """Make the levels of an FPN from a single map."""
    first, last = fpn.get('start_level', 0), fpn.get('end_level', -1)
    strides = strides[first:] if last == -1 else strides[first : last + 1]
    neck = _simple_fpn(fmap, fpn['out_channels'], strides)
    swap.settings['model']['neck'] = dict(
        _delete_=True, **neck, num_outs=fpn['num_outs']
    )
    swap.notes.append(
        f'model.neck: FPN -> SimpleFPN from the map of stride {fmap.stride}, '
        'with the same levels'
    )


def _pyramid(
    swap: Swap, fmap: Output, strides: list[int]
) -> tuple[dict, list[Output]]:
    """The neck that a plain ViT needs before all others, and its maps."""
    swap.notes.append(
        f'model.neck: SimpleFPN added, which makes maps of strides {strides} '
        f'from the one of stride {fmap.stride}'
    )
    neck = _simple_fpn(fmap, FPN_CHANNELS, strides)
    return neck, [Output(FPN_CHANNELS, stride) for stride in strides]


def _simple_fpn(fmap: Output, channels: int, strides: list[int]) -> dict:
    if not math.log2(fmap.stride).is_integer():
        raise UserError(
            'this model needs a pyramid, which SimpleFPN makes of a map whose '
            'stride is a power of two: set patch_size=16 in the backbone'
        )
    neck = dict(
        type='SimpleFPN',
        in_channels=fmap.channels,
        out_channels=channels,
        strides=strides,
    )
    return neck if fmap.stride == 16 else dict(neck, in_stride=fmap.stride)


def _set_necks(swap: Swap, model: dict, neck, added: list[dict], maps: Maps):
    """Put necks before the old one, and tell that what it is fed.

    Without a ``neck`` to keep, that of the model is dropped.
    """
    settings, old_neck = swap.settings['model'], model.get('neck')
    if _has_channels(neck):
        channels = maps.channels(_first(neck))
        swap.notes.append(
            f'model.neck: in_channels {_first(neck)["in_channels"]} -> '
            f'{channels}'
        )
        if not added and isinstance(neck, dict):
            settings['neck'] = dict(in_channels=channels)
            return
        rest = neck[1:] if isinstance(neck, (list, tuple)) else []
        settings['neck'] = [
            *added,
            dict(_first(neck), in_channels=channels),
            *rest,
        ]
    elif added:
        rest = [] if neck is None else [neck]
        settings['neck'] = (
            [*added, *rest] if rest else _new_neck(model, **added[0])
        )
    elif neck is None and old_neck is not None:
        settings['neck'] = None
        swap.notes.append(
            f'model.neck: {type_of(old_neck)} dropped, which belonged to the '
            'old backbone'
        )


def _chain_necks(swap: Swap, model: dict, toolbox: Toolbox):
    necks = swap.settings['model'].get('neck')
    if isinstance(necks, list) and not toolbox.takes_many_necks:
        chain = _new_neck(model, type='NeckChain', necks=necks)
        swap.settings['model']['neck'] = chain


def _first(neck) -> dict:
    return neck[0] if isinstance(neck, (list, tuple)) else neck


def _has_channels(neck) -> bool:
    return neck is not None and 'in_channels' in _first(neck)


def _note_strides(swap: Swap, old: list[Output], new: list[Output]):
    for was, now in zip(old[-len(new) :], new):
        if was.stride != now.stride:
            swap.notes.append(
                f'a map of stride {was.stride} now has stride {now.stride}'
            )


def _set_heads(swap: Swap, model: dict, maps: Maps, scope: str):
    """Tell everything that looks at the maps what these are."""
    for key, part in model.items():
        if key in ('backbone', 'neck'):
            continue
        if isinstance(part, list):
            _set_head_list(swap, key, part, maps)
        elif isinstance(part, dict) and 'in_channels' in part:
            _set_channels(swap, key, part, maps)
            _set_resolution(swap, key, part, maps, scope)
        elif isinstance(part, dict):
            _set_inner(swap, key, part, maps)


def _set_inner(swap: Swap, key: str, head: dict, maps: Maps):
    """Of a head that consists of others, those that look at the maps."""
    changes = {}
    for name, part in head.items():
        if isinstance(part, dict) and 'in_channels' in part:
            changes[name] = maps.new_inputs(part)
        elif isinstance(part, dict) and 'roi_layer' in part:
            changes[name] = dict(out_channels=maps.new[-1].channels)
    if changes:
        swap.settings['model'][key] = changes
    for name, change in changes.items():
        swap.notes.append(f'model.{key}.{name}: {change}')


def _set_head_list(swap: Swap, key: str, heads: list, maps: Maps):
    """A list in a config can only be replaced as a whole."""
    changed = [
        dict(head, **maps.new_inputs(head)) if 'in_channels' in head else head
        for head in heads
    ]
    if changed != heads:
        swap.settings['model'][key] = changed
        channels = [head.get('in_channels') for head in changed]
        swap.notes.append(f'model.{key}: in_channels {channels}')


def _set_channels(swap: Swap, key: str, part: dict, maps: Maps):
    changes = maps.new_inputs(part)
    _change(
        swap, key, part, {k: v for k, v in changes.items() if part[k] != v}
    )


def _change(swap: Swap, key: str, part: dict, changes: dict):
    """Change settings of a part of the model, and say so."""
    if changes:
        swap.settings['model'].setdefault(key, {}).update(changes)
    for name, value in changes.items():
        swap.notes.append(f'model.{key}.{name}: {part.get(name)} -> {value}')


def _set_resolution(swap: Swap, key: str, head: dict, maps: Maps, scope: str):
    """Keep the resolution of what a pose head puts out."""
    old, new = maps.old[-1].stride, maps.new[-1].stride
    if old is None or old == new:
        return
    changes = {}
    defaults = options_of(head, scope)
    if 'deconv_out_channels' in defaults:
        layers = {
            name: tuple(head.get(name, defaults[name].default) or ())
            for name in DECONVOLUTIONS
            if name in defaults
        }
        number = len(layers['deconv_out_channels']) + round(
            math.log2(new / old)
        )
        if number < 0:
            raise UserError(
                f'the heat maps of model.{key} are coarser than the map of '
                f'stride {new} that they are made from'
            )
        changes = {
            name: (*values, *[DECONVOLUTIONS[name]] * 5)[:number]
            for name, values in layers.items()
        }
    if 'in_featuremap_size' in head:
        changes['in_featuremap_size'] = tuple(
            side * old // new for side in head['in_featuremap_size']
        )
    _change(swap, key, head, changes)
