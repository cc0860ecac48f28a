"""Put one of our backbones into a config of any of the toolboxes.

What a backbone hands to the rest of a model is found by running it on a small
picture, the old one and the new one. The rest is adapted to the difference,
and the result is built and run before anything is written.
"""

import copy
import importlib.util
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.utils import is_installed

from clustr_mm import configs, outputs
from clustr_mm.analysis.models import build_model
from clustr_mm.configs import type_of
from clustr_mm.errors import UserError, missing, summary
from clustr_mm.toolboxes import TOOLBOXES, toolbox_of
from .planning import Swap, class_of, plan
from .probing import StockError, hooks_of_ours, parse

# Constructors of the toolboxes that know their own backbones by name, or that
# need a backbone which knows the depth of its parameters.
LAYER_DECAY = (
    'LayerDecayOptimizerConstructor',
    'LayerDecayOptimWrapperConstructor',
    'LearningRateDecayOptimizerConstructor',
    'LearningRateDecayOptimWrapperConstructor',
)


def presets() -> dict[str, Path]:
    """The backbones that have a name: those that our configs are made with."""
    folder = configs.config_folder() / '_base_/backbones'
    return {path.stem: path for path in sorted(folder.glob('*.py'))}


def find_config(name: str) -> Path:
    """A config by its file, or as ``mmseg::folder/file.py``."""
    scope, is_external, rest = name.partition('::')
    if not is_external:
        if not Path(name).is_file():
            raise missing('config file', name)
        return Path(name)
    if scope not in TOOLBOXES:
        raise UserError(
            f'{scope!r} in {name} must be one of {list(TOOLBOXES)}'
        )
    TOOLBOXES[scope].require()
    package = Path(importlib.util.find_spec(scope).origin).parent
    # Installed from a wheel, or as a checkout.
    for folder in (package / '.mim/configs', package.parent / 'configs'):
        if (folder / rest).is_file():
            return folder / rest
    raise UserError(
        f'there is no config {name}: give its path below '
        f'{package}/.mim/configs'
    )


def swap_backbone(
    base: str,
    backbone: str,
    out: Path | None,
    adamw: bool = False,
    lr: float = 1e-4,
    assume: str | None = None,
) -> list[str]:
    """Write a config that inherits from ``base`` with another backbone.

    Args:
        base (str): A config file, or a toolbox's own.
        backbone (str): A name of `presets`, or a config file that has it.
        out (Path, optional): The file to write; None to try whether it can be
            written.
        adamw (bool): Whether to replace the optimizer.
        lr (float): The rate of that.
        assume (str, optional): What the old backbone hands out, as of
            `parse`, if it is not to be run.

    Returns:
        list[str]: What was changed, in sentences.
    """
    if out is not None:
        outputs.check_file(out)
    settings, imports = _find_backbone(backbone)
    path = find_config(base)
    try:
        cfg = configs.read(path)
    except UserError as error:
        raise StockError(str(error)) from error
    if Config._is_lazy_import(str(path)):
        raise UserError(
            f'{path} is a config in pure Python, from which a config of text '
            'cannot inherit'
        )
    swap = plan(cfg, settings, parse(assume) if assume else None)
    _swap_optimizer(swap, cfg, adamw, lr)
    _add_hooks(swap, cfg, hooks_of_ours(settings, cfg.default_scope))
    wrapper = swap.settings.get('optim_wrapper', {})
    if (
        wrapper.get('constructor') == 'LayerDecayConstructor'
        or 'custom_hooks' in swap.settings
    ):
        imports = ['clustr_mm.training', *imports]
    imports = [*configs.imports_of(cfg), 'clustr_mm', *imports]
    imports = list(dict.fromkeys(imports))
    with tempfile.TemporaryDirectory() as folder:
        # A config must have a name that is one of a module.
        file = Path(out or Path(folder, 'dry_run.py'))
        name = _base_name(swap, base, path, file, cfg.default_scope)
        _write(swap, imports, name, file, cfg)
    return swap.notes


def _find_backbone(name: str) -> tuple[dict, list[str]]:
    """The settings of a backbone, and the modules that it needs."""
    found = presets()
    if name in found:
        return configs.read_any(found[name])[name].to_dict(), []
    if not name.endswith('.py'):
        raise UserError(
            f'there is no backbone {name!r}; choose from {list(found)}, '
            'or give a config that has yours'
        )
    cfg = configs.read(name)
    backbone = cfg.model.get('backbone') or {}
    if class_of(backbone) is None:
        raise UserError(
            f'{name} has no backbone to take: model.backbone is '
            f'{type_of(backbone)}, which is neither ClusTR nor a ThinViT'
        )
    # What it hands out is decided by the model that it is put into.
    taken = {
        key: value
        for key, value in backbone.to_dict().items()
        if key not in ('out_type', 'out_indices')
    }
    return taken, configs.imports_of(cfg)


def _add_hooks(swap: Swap, cfg: Config, hooks: Sequence[dict]) -> None:
    """What a training of the new backbone needs besides."""
    there = list(cfg.get('custom_hooks') or [])
    kinds = [type_of(hook) for hook in there]
    new = [hook for hook in hooks if hook['type'] not in kinds]
    if new:
        swap.settings['custom_hooks'] = [*there, *new]
        names = ', '.join(hook['type'] for hook in new)
        swap.notes.append(f'custom_hooks: {names}, which its training needs')


def _swap_optimizer(swap: Swap, cfg: Config, adamw: bool, lr: float):
    """Replace the optimizer on request, and what fits the old backbone."""
    if cfg.get('load_from'):
        swap.settings['load_from'] = None
        swap.notes.append('load_from: dropped, it had the old backbone')
    wrapper = cfg.get('optim_wrapper')
    if wrapper is None:
        return
    is_plain = not class_of(swap.settings['model']['backbone']).is_pyramid
    groups = dict(_delete_=True, norm_decay_mult=0.0)
    if is_plain:
        groups['custom_keys'] = dict(
            pos_embed=dict(decay_mult=0.0), cls_token=dict(decay_mult=0.0)
        )
    new = {}
    if wrapper.get('constructor') in LAYER_DECAY:
        new = _known_constructor(wrapper, groups, is_plain)
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
    elif type_of(wrapper.get('optimizer')) == 'SGD':
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


def _known_constructor(wrapper: dict, groups: dict, is_plain: bool) -> dict:
    """In place of one that knows the old backbone, with its decay if the new
    one says how deep its parameters lie."""
    rate = wrapper.get('paramwise_cfg', {}).get('layer_decay_rate')
    if is_plain and rate:
        return dict(
            constructor='LayerDecayConstructor',
            paramwise_cfg=dict(groups, layer_decay_rate=rate),
        )
    return dict(
        constructor='DefaultOptimWrapperConstructor', paramwise_cfg=groups
    )


def _write(
    swap: Swap, imports: list[str], base: str, out: Path, stock: Config
):
    """Write the config, unless the model that it describes does not run."""
    settings = dict(
        _base_=base,
        custom_imports=dict(imports=imports, allow_failed_imports=False),
    )
    text = _as_text({**settings, **swap.settings})
    out.parent.mkdir(parents=True, exist_ok=True)
    # A config must have a name that is one of a module.
    draft = out.with_name(f'{out.stem}_draft.py')
    with outputs.complete_file(out, draft):
        draft.write_text(text)
        check(configs.read(draft), stock)


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


def _base_name(
    swap: Swap, base: str, path: Path, out: Path, default_scope: str
) -> str:
    """How the new config names the one that it inherits from."""
    scope = base.partition('::')[0]
    if '::' not in base:
        return os.path.relpath(path.resolve(), out.resolve().parent)
    # MMEngine looks for a distribution by its original name, and for no
    # folder such as legacy_1.x. It takes all parts for that toolbox's, which
    # RTMDet's classifiers are not.
    is_known = is_installed(TOOLBOXES[scope].package.distribution)
    is_known = is_known and scope == default_scope
    if is_known and re.match(r'\w+::\w+/', base):
        return base
    swap.notes.append(
        f'_base_ is a path, as MMEngine does not find {base} here'
    )
    return str(path)


def check(cfg: Config, stock: Config) -> None:
    """Raise an error unless a config's model can be built and run.

    Args:
        cfg (Config): The config.
        stock (Config): The one that it was made from.
    """
    try:
        run_once(cfg)
    except Exception as error:  # whatever a stranger's model raises
        _refuse_what_never_ran(stock)
        raise UserError(
            f'{type_of(cfg.model)} cannot work with this backbone, so nothing '
            f'was written. It says: {summary(error)}'
        ) from error


def _refuse_what_never_ran(cfg: Config):
    """Raise an error if a config does not work with its own backbone."""
    try:
        run_once(cfg)
    except Exception as error:  # whatever a stranger's model raises
        raise StockError(
            f'{type_of(cfg.model)} cannot be built and run here with its own '
            f'backbone either: {summary(error)}. Mend that first.'
        ) from error


def run_once(cfg: Config) -> None:
    """Run a config's model on a random image, as far as it goes."""
    toolbox, cfg = toolbox_of(cfg), without_weights(cfg)
    model = build_model(cfg)
    # It tells of every weight.
    MMLogger.get_current_instance().setLevel('WARNING')
    model.init_weights()  # some leave memory as it is until then
    inputs = toolbox.example_inputs(cfg, 1, toolbox.probe_size(cfg))
    with torch.no_grad():
        try:
            model(**inputs, mode='predict')
        except Exception:  # self-supervised ones do not predict; boxes that
            # random weights put beyond the picture can have no masks
            model(**inputs, mode='tensor')


def without_weights(cfg: Config) -> Config:
    """A copy of a config no part of which starts from a file."""
    cfg = copy.deepcopy(cfg)
    for _, part in configs.walk(cfg.model):
        if type_of(part.get('init_cfg')) == 'Pretrained':
            del part['init_cfg']
        if isinstance(part.get('pretrained'), str):
            part['pretrained'] = None
    return cfg
