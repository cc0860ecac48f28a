"""Put one of our backbones into a config of any of the toolboxes.

What a backbone hands to the rest of a model is found by running it on a small
picture, the old one and the new one. The rest is adapted to the difference,
and the result is built and run before anything is written.
"""

import importlib.util
import inspect
import math
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from mmengine.utils import is_installed

from . import config_files, outputs
from .analysis.models import build_model, example_inputs
from .backbones import HVT, ClusTR, EViT, ThinViT
from .dependencies import PACKAGES, require
from .errors import UserError
from .registry import MODELS

PROBE = 256  # side of the picture that backbones are run on
STRIDES = (4, 8, 16, 32)
FPN_CHANNELS = 256


def _vit(type: str, arch: str = 'deit-small', **more) -> dict:
    return dict(type=type, arch=arch, drop_path_rate=0.1, **more)


BACKBONES = {
    'clustr_t': dict(type='ClusTR', arch='tiny', drop_path_rate=0.1),
    'clustr_s': dict(type='ClusTR', arch='small', drop_path_rate=0.1),
    'clustr_b': dict(type='ClusTR', arch='base', drop_path_rate=0.3),
    'hvt_s1': _vit('HVT', 's-1'),
    'evit_s_k07': _vit('EViT', keep=0.7),
    'dynamicvit_s_k07': _vit('DynamicViT', keep=0.7),
    'tome_s_r8': _vit('ToMe', merge=8),
    # As many tokens as EViT and DynamicViT keep, of a 224 x 224 image.
    'token_pooling_s_k07': _vit(
        'TokenPoolingDeiT', keep=[196] * 3 + [137] * 3 + [96] * 3 + [67] * 3
    ),
}

# Necks that make a pyramid of a plain ViT's maps, in MMSegmentation: they
# belong to the backbone.
PYRAMIDS = ('MultiLevelNeck', 'Feature2Pyramid')
# Constructors of the toolboxes that know their own backbones by name, or that
# need a backbone which knows the depth of its parameters.
LAYER_DECAY = (
    'LayerDecayOptimizerConstructor',
    'LayerDecayOptimWrapperConstructor',
    'LearningRateDecayOptimizerConstructor',
    'LearningRateDecayOptimWrapperConstructor',
)
# What certain parts of a model need and none of our backbones has.
IMPOSSIBLE = {
    'DeiTClsHead': 'the token that DeiT distils to',
    'LeViTClsHead': 'the token that LeViT distils to',
    'SSDNeck': "the old backbone's own channels, which it continues",
    'CPMHead': 'several maps of the same stride, one for each refinement',
    'MSPNHead': 'several maps of the same stride, one for each refinement',
}


@dataclass
class Output:
    """A map that a backbone hands out; a vector has no stride."""

    channels: int
    stride: int | None


@dataclass
class Swap:
    """What replaces parts of a config, and what to tell the user of it."""

    settings: dict = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_config(name: str) -> Path:
    """A config by its file, or as ``mmseg::folder/file.py``."""
    scope, is_external, rest = name.partition('::')
    if not is_external:
        if not Path(name).is_file():
            raise UserError(f'there is no config file {name}')
        return Path(name)
    if scope not in PACKAGES:
        raise UserError(f'{scope!r} in {name} must be one of {list(PACKAGES)}')
    require(scope)
    package = Path(importlib.util.find_spec(scope).origin).parent
    # Installed from a wheel, or as a checkout.
    for folder in (package / '.mim/configs', package.parent / 'configs'):
        if (folder / rest).is_file():
            return folder / rest
    raise UserError(
        f'{scope} has no config {rest}: give its path below '
        f'{package}/.mim/configs'
    )


def swap_backbone(
    base: str, backbone: str, out: Path, adamw: bool = False, lr: float = 1e-4
) -> list[str]:
    """Write a config that inherits from ``base`` with another backbone.

    Args:
        base (str): A config file, or a toolbox's own.
        backbone (str): A name of `BACKBONES`, or a config file that has it.
        out (Path): The file to write.
        adamw (bool): Whether to replace the optimizer.
        lr (float): The rate of that.

    Returns:
        list[str]: What was changed, in sentences.
    """
    settings, imports = _find_backbone(backbone)
    path = find_config(base)
    cfg = config_files.read(path)
    if Config._is_lazy_import(str(path)):
        raise UserError(
            f'{path} is a config in pure Python, from which a config of text '
            'cannot inherit'
        )
    outputs.check_file(out)
    swap = plan(cfg, settings)
    _swap_optimizer(swap, cfg, adamw, lr)
    imports = [*_imports(cfg), 'clustr_mm', *imports]
    name = _base_name(swap, base, path, Path(out))
    _write(swap, list(dict.fromkeys(imports)), name, Path(out))
    return swap.notes


def _find_backbone(name: str) -> tuple[dict, list[str]]:
    """The settings of a backbone, and the modules that it needs."""
    if name in BACKBONES:
        return BACKBONES[name], []
    if not name.endswith('.py'):
        raise UserError(
            f'there is no backbone {name!r}; choose from {list(BACKBONES)}, '
            'or give a config that has yours'
        )
    cfg = config_files.read(name)
    backbone = cfg.model.get('backbone') or {}
    if not _is(backbone, (ClusTR, ThinViT)):
        raise UserError(
            f'{name} has no backbone to take: model.backbone is '
            f'{_type(backbone)}, which is neither ClusTR nor a ThinViT'
        )
    # What it hands out is decided by the model that it is put into.
    taken = {
        key: value
        for key, value in backbone.to_dict().items()
        if key not in ('out_type', 'out_indices')
    }
    return taken, _imports(cfg)


def _imports(cfg: Config) -> list[str]:
    return cfg.get('custom_imports', {}).get('imports', [])


def plan(cfg: Config, backbone: dict) -> Swap:
    """What has to change in a config for a new backbone."""
    model, scope = cfg.get('model'), cfg.get('default_scope', 'mmengine')
    if not model or 'backbone' not in model:
        raise UserError('this config has no model.backbone to replace')
    _refuse(model)
    old = _outputs(model.backbone, scope)
    vectors = [output.stride is None for output in old]
    is_averaged = _type(model.get('neck')) == 'GlobalAveragePooling'
    if scope == 'mmpretrain' and (all(vectors) or is_averaged):
        return _plan_classifier(model, backbone, scope)
    if any(vectors):
        raise UserError(
            f'{_type(model.backbone)} hands out vectors, and it is not known '
            f'what {_type(model)} does with them'
        )
    return _plan_dense(model, backbone, old, scope)


def _refuse(model: dict):
    """Raise an error if a part needs what none of the backbones has."""
    if 'shared_head' in model.get('roi_head', {}):
        raise UserError(
            "roi_head.shared_head is the old backbone's last stage: there is "
            'no such stage in ours. Start from a config with an FPN'
        )
    for key, node in model.items():
        for part in node if isinstance(node, list) else [node]:
            if _type(part) in IMPOSSIBLE:
                raise UserError(
                    f'model.{key} is a {_type(part)}, which needs '
                    f'{IMPOSSIBLE[_type(part)]}'
                )


def _type(node) -> str | None:
    if not isinstance(node, dict):
        return None
    return str(node.get('type')).rsplit('.', 1)[-1]


def _is(backbone: dict, kinds: type | tuple[type, ...]) -> bool:
    """Whether a config's backbone is of a class, or of one made from it."""
    found = MODELS.get(str(backbone.get('type')))
    return inspect.isclass(found) and issubclass(found, kinds)


def _outputs(backbone: dict, scope: str) -> list[Output]:
    """What a backbone hands out, found by running it."""
    cfg = {k: v for k, v in backbone.items() if k != 'pretrained'}
    cfg['init_cfg'] = None
    image = torch.zeros(1, 3, PROBE, PROBE)
    try:
        with (
            DefaultScope.overwrite_default_scope(scope),
            torch.no_grad(),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter('ignore')
            module = MODELS.build(cfg)
            module.eval()  # returns nothing in some toolboxes
            outs = module(image)
    except Exception as error:  # of a backbone that is not ours
        raise UserError(
            f'{_type(backbone)} cannot be built and run to see what it hands '
            f'out: {error}'
        ) from error
    outs = [outs] if isinstance(outs, torch.Tensor) else list(outs)
    if not all(isinstance(out, torch.Tensor) for out in outs):
        raise UserError(
            f'{_type(backbone)} hands out more than maps: the rest of its '
            'model cannot be fed by another backbone'
        )
    return [
        Output(out.shape[1], PROBE // out.shape[-1] if out.ndim == 4 else None)
        for out in outs
    ]


def _plan_classifier(model: dict, backbone: dict, scope: str) -> Swap:
    """A classifier that looks at one vector."""
    neck, head = model.get('neck'), model['head']
    if _is(backbone, ClusTR):
        backbone = dict(backbone, out_indices=(3,))
        new_neck = dict(_delete_=True, type='GlobalAveragePooling')
    else:
        has_class = not _is(backbone, HVT) and backbone.get(
            'with_cls_token', True
        )
        backbone = dict(
            backbone, out_type='cls_token' if has_class else 'avg_featmap'
        )
        new_neck = None
    swap = Swap()
    _set_backbone(swap, model, backbone)
    if _type(neck) != _type(new_neck):
        swap.settings['model']['neck'] = new_neck
        swap.notes.append(
            f'model.neck: {_type(neck)} -> {_type(new_neck)}, as this '
            f'backbone hands out {"a map" if new_neck else "a vector"}'
        )
    channels = _outputs(backbone, scope)[-1].channels
    _set_channels(swap, 'head', head, [Output(channels, None)])
    return swap


def _plan_dense(
    model: dict, backbone: dict, old: list[Output], scope: str
) -> Swap:
    """A model that looks at one map or several."""
    swap = Swap()
    neck = model.get('neck')
    if _type(neck) in PYRAMIDS:
        old, neck = _after_pyramid(neck, old), None
    if len(old) > len(STRIDES):
        raise UserError(
            f'{_type(model)} uses {len(old)} maps of its backbone, of strides '
            f'{[o.stride for o in old]}; there are none but those of strides '
            f'{list(STRIDES)}'
        )
    indices = _levels(old)
    if _is(backbone, ClusTR):
        backbone = dict(backbone, out_indices=indices)
        if scope == 'mmdet':  # of large images: linear in their area
            backbone.update(window=56, reuse=True)
    else:
        backbone = dict(backbone, out_type='featmap')
        if _is(backbone, EViT):
            # A map needs the value of each token, at its own place.
            backbone['fuse'] = False
    new = _outputs(backbone, scope)
    _set_backbone(swap, model, backbone)
    if len(new) == len(old) or not _needs_pyramid(model, neck):
        _note_strides(swap, old, new)
        _set_necks(swap, model, neck, [], new)
    elif _type(neck) == 'FPN':
        _replace_fpn(swap, neck, new[0], [STRIDES[i] for i in indices])
        return swap
    else:
        pyramid, new = _pyramid(swap, new[0], [STRIDES[i] for i in indices])
        _set_necks(swap, model, neck, [pyramid], new)
    # Behind a neck with channels of its own, heads see what they saw before.
    if not _has_channels(neck):
        _set_heads(swap, model, old[-1].stride, new)
    return swap


def _levels(old: list[Output]) -> tuple[int, ...]:
    """Which of the strides 4 to 32 stand for the old maps.

    A single map is the deepest one. Four maps are all of them: in a dilated
    network, the deeper ones have the stride of a shallower one.
    """
    strides = [output.stride for output in old]
    if len(old) == 1:
        return (3,)
    if len(old) == len(STRIDES) and strides == sorted(strides):
        return (0, 1, 2, 3)
    if strides == sorted(set(strides)) and set(strides) <= set(STRIDES):
        return tuple(STRIDES.index(stride) for stride in strides)
    raise UserError(
        f'the model needs maps of strides {strides}; there are none but those '
        f'of strides {list(STRIDES)}'
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


def _after_pyramid(neck: dict, old: list[Output]) -> list[Output]:
    """The maps behind a neck that rescales those of a plain ViT."""
    if _type(neck) == 'MultiLevelNeck':
        channels = neck['out_channels']
        scales = neck.get('scales', [0.5, 1, 2, 4])
    else:
        channels = neck['embed_dim']
        scales = neck.get('rescales', [4, 2, 1, 0.5])
    return [
        Output(channels, int(output.stride / scale))
        for output, scale in zip(old, scales)
    ]


def _set_backbone(swap: Swap, model: dict, backbone: dict):
    swap.settings['model'] = dict(backbone=dict(_delete_=True, **backbone))
    swap.notes.append(
        f'model.backbone: {_type(model["backbone"])} -> {backbone["type"]}; '
        'its settings and its weights are dropped'
    )
    if model.get('pretrained'):
        swap.settings['model']['pretrained'] = None
        swap.notes.append('model.pretrained: dropped')


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


def _set_necks(
    swap: Swap, model: dict, neck, added: list[dict], new: list[Output]
):
    """Put necks before the old one, and tell that what it is fed.

    Without a ``neck`` to keep, that of the model is dropped.
    """
    settings, old_neck = swap.settings['model'], model.get('neck')
    if _has_channels(neck):
        channels = _channels(_first(neck), new)
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
        settings['neck'] = [*added, *rest] if rest else added[0]
        if not rest and old_neck is not None:
            settings['neck']['_delete_'] = True
    elif neck is None and old_neck is not None:
        settings['neck'] = None
        swap.notes.append(
            f'model.neck: {_type(old_neck)} dropped, which belonged to the '
            'old backbone'
        )


def _first(neck) -> dict:
    return neck[0] if isinstance(neck, (list, tuple)) else neck


def _has_channels(neck) -> bool:
    return neck is not None and 'in_channels' in _first(neck)


def _note_strides(swap: Swap, old: list[Output], new: list[Output]):
    for before, after in zip(old[-len(new) :], new):
        if before.stride != after.stride:
            swap.notes.append(
                f'a map of stride {before.stride} now has stride '
                f'{after.stride}'
            )


def _set_heads(swap: Swap, model: dict, old_stride: int, new: list[Output]):
    """Tell everything that looks at the maps what these are."""
    for key, part in model.items():
        if key in ('backbone', 'neck'):
            continue
        if isinstance(part, list):
            _set_head_list(swap, key, part, new)
        elif isinstance(part, dict) and 'in_channels' in part:
            _set_channels(swap, key, part, new)
            _set_resolution(swap, key, part, old_stride, new[-1].stride)


def _set_head_list(swap: Swap, key: str, heads: list, new: list[Output]):
    """A list in a config can only be replaced as a whole."""
    changed = [
        dict(head, **_new_inputs(head, new)) if 'in_channels' in head else head
        for head in heads
    ]
    if changed != heads:
        swap.settings['model'][key] = changed
        channels = [head.get('in_channels') for head in changed]
        swap.notes.append(f'model.{key}: in_channels {channels}')


def _set_channels(swap: Swap, key: str, part: dict, new: list[Output]):
    changes = _new_inputs(part, new)
    _change(
        swap, key, part, {k: v for k, v in changes.items() if part[k] != v}
    )


def _change(swap: Swap, key: str, part: dict, changes: dict):
    """Change settings of a part of the model, and say so."""
    if changes:
        swap.settings['model'].setdefault(key, {}).update(changes)
    for name, value in changes.items():
        swap.notes.append(f'model.{key}.{name}: {part.get(name)} -> {value}')


def _new_inputs(part: dict, new: list[Output]) -> dict:
    """New values of what a neck or a head says about its inputs."""
    changes = dict(in_channels=_channels(part, new))
    if 'in_index' in part and len(new) == 1:
        many = isinstance(part['in_index'], (list, tuple))
        changes['in_index'] = [0] if many else 0
    if 'c1_in_channels' in part:
        changes['c1_in_channels'] = new[0].channels
    return changes


def _channels(part: dict, new: list[Output]) -> int | list[int]:
    """The channels of the maps that a part of the model looks at."""
    in_channels, index = part['in_channels'], part.get('in_index')
    last = len(new) - 1
    if not isinstance(in_channels, (list, tuple)):
        index = last if index is None else min(index, last)
        return new[index].channels
    if index is None:
        index = range(len(in_channels))
    elif isinstance(index, int):
        index = [index]
    return [new[min(i, last)].channels for i in index]


def _set_resolution(swap: Swap, key: str, head: dict, old: int, new: int):
    """Keep the resolution of what a pose head puts out."""
    changes = {}
    if _type(head) == 'HeatmapHead' and old != new:
        channels = head.get('deconv_out_channels', (256, 256, 256)) or ()
        kernels = head.get('deconv_kernel_sizes', (4, 4, 4)) or ()
        number = len(channels) + round(math.log2(new / old))
        if number < 0:
            raise UserError(
                f'the heat maps of model.{key} are coarser than the map of '
                f'stride {new} that they are made from'
            )
        changes['deconv_out_channels'] = (*channels, *[256] * 5)[:number]
        changes['deconv_kernel_sizes'] = (*kernels, *[4] * 5)[:number]
    if 'in_featuremap_size' in head and old != new:
        changes['in_featuremap_size'] = tuple(
            side * old // new for side in head['in_featuremap_size']
        )
    _change(swap, key, head, changes)


def _swap_optimizer(swap: Swap, cfg: Config, adamw: bool, lr: float):
    """Replace the optimizer on request, and what fits the old backbone."""
    wrapper = cfg.get('optim_wrapper')
    if wrapper is None:
        return
    is_plain = not _is(swap.settings['model']['backbone'], ClusTR)
    groups = dict(_delete_=True, norm_decay_mult=0.0)
    if is_plain:
        groups['custom_keys'] = dict(
            pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)
        )
    new = {}
    if wrapper.get('constructor') in LAYER_DECAY:
        rate = wrapper.get('paramwise_cfg', {}).get('layer_decay_rate')
        if is_plain and rate:
            new['constructor'] = 'LayerDecayConstructor'
            new['paramwise_cfg'] = dict(groups, layer_decay_rate=rate)
        else:
            new['constructor'] = 'DefaultOptimWrapperConstructor'
            new['paramwise_cfg'] = groups
        swap.notes.append(
            f'optim_wrapper.constructor: {wrapper.constructor} -> '
            f'{new["constructor"]}, which knows the new backbone'
        )
    if adamw:
        new['optimizer'] = dict(
            _delete_=True, type='AdamW', lr=lr, weight_decay=0.05
        )
        new.setdefault('paramwise_cfg', groups)
        swap.notes.append(
            f'optim_wrapper: AdamW at {lr}, no weight decay of norms'
        )
    elif _type(wrapper.get('optimizer')) == 'SGD':
        swap.notes.append(
            'optim_wrapper: SGD is left, from which transformers learn '
            'slowly; --adamw replaces it'
        )
    if 'paramwise_cfg' in new and 'paramwise_cfg' not in wrapper:
        new['paramwise_cfg'] = {
            k: v for k, v in new['paramwise_cfg'].items() if k != '_delete_'
        }
    if new:
        swap.settings['optim_wrapper'] = new
    if cfg.get('load_from'):
        swap.settings['load_from'] = None
        swap.notes.append('load_from: dropped, it had the old backbone')


def _write(swap: Swap, imports: list[str], base: str, out: Path):
    """Write the config, unless the model that it describes does not run."""
    settings = dict(
        _base_=base,
        custom_imports=dict(imports=imports, allow_failed_imports=False),
    )
    text = _as_text({**settings, **swap.settings})
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f'{out.stem}_draft.py')
    draft.write_text(text)
    try:
        check(Config.fromfile(draft))
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)


def _as_text(settings: dict) -> str:
    return ''.join(f'{k} = {_literal(v)}\n' for k, v in settings.items())


def _literal(value, indent: str = '') -> str:
    """A value in Python, in one line if that is short enough."""
    if not isinstance(value, dict):
        return repr(value)
    items = {k: _literal(v, indent + '    ') for k, v in value.items()}
    line = ', '.join(f'{k}={v}' for k, v in items.items())
    if '\n' not in line and len(line) < 60 - len(indent):
        return f'dict({line})'
    lines = [f'{indent}    {k}={v},\n' for k, v in items.items()]
    return f'dict(\n{"".join(lines)}{indent})'


def _base_name(swap: Swap, base: str, path: Path, out: Path) -> str:
    """How the new config names the one that it inherits from."""
    scope = base.partition('::')[0]
    if '::' not in base:
        return os.path.relpath(path.resolve(), out.resolve().parent)
    # MMEngine looks for a distribution by its original name.
    if is_installed('mmsegmentation' if scope == 'mmseg' else scope):
        return base
    swap.notes.append(
        f'_base_ is a path, as MMEngine does not find {scope}:: here'
    )
    return str(path)


def check(cfg: Config):
    """Raise an error unless a config's model can be built and run."""
    size = (256, 192) if cfg.default_scope == 'mmpose' else (256, 256)
    decoder = cfg.model.get('head', {}).get('decoder', {})
    if 'input_size' in decoder:
        size = tuple(decoder['input_size'][::-1])
    try:
        inputs = example_inputs(cfg, 1, size)
        with torch.no_grad():
            build_model(cfg)(**inputs, mode='tensor')
    except Exception as error:  # whatever a stranger's model raises
        raise UserError(
            f'{_type(cfg.model)} cannot work with this backbone, so nothing '
            f'was written. It says: {type(error).__name__}: {error}'
        ) from error
