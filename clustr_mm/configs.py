"""Config files, also those that inherit from the ones of this package.

MMEngine resolves ``_base_ = 'clustr_mm::evit/fpn_evit_s_k07_ade20k.py'`` for
packages that it has on a list, and marks what comes from there with the
package's scope. This package has none, as its modules are in the root
registries: a model so marked would not find the toolbox's.
"""

import argparse
import inspect
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict, DictAction
from mmengine.runner import Runner

from .arguments import nearest
from .errors import UserError, missing, summary

_NAME = __package__
_PACKAGE = Path(__file__).parent
# Folders of configs that are no models to give on: parts, and small ones.
_NO_RECIPES = {'_base_', 'quickstart', 'study'}

# What runners and tools read; an option that sets anything else and is not in
# the config would have no effect.
KNOWN = {
    *inspect.signature(Runner).parameters,
    *('auto_scale_lr', 'runner_type', 'tta_model', 'tta_pipeline'),
    *('custom_imports', 'compile', 'activation_checkpointing'),
    *('efficient_conv_bn_eval', 'codec'),
}

# What the command line has changed in a file's config, for messages.
_changes: dict[str, list[str]] = {}


class _Options(DictAction):
    """Reads KEY=VALUE, and refuses what is not."""

    def __call__(self, parser, namespace, values, option_string=None):
        for value in values:
            key, equals, _ = value.partition('=')
            if not key or not equals:
                raise argparse.ArgumentError(
                    self, f'takes KEY=VALUE, not {value!r}'
                )
            try:
                super().__call__(parser, namespace, [value], option_string)
            except (AssertionError, ValueError) as error:
                raise argparse.ArgumentError(
                    self, f'takes KEY=VALUE, but in {value!r} {error}'
                ) from error


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the argument that overrides parts of a config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=_Options,
        default={},
        metavar='KEY=VALUE',
        help='override parts of the config: a.b=1, a.b=x,y or '
        'a.b="[(x,y),(z,w)]" without white space',
    )


def as_arguments(options: dict) -> list[str]:
    """Options as the tools' --cfg-options reads them."""
    return [
        f'{key}={value}'.replace(' ', '').replace("'", '')
        for key, value in options.items()
    ]


def read(path: str | Path, options: dict | None = None) -> Config:
    """Read the config of a model, and override parts of it."""
    cfg = read_any(path)
    override(cfg, options or {})
    model = cfg.get('model')
    if not isinstance(model, dict) or not model:
        raise UserError(
            f'{path} describes no model: it needs model = dict(type=...), '
            f'but has {model!r}'
        )
    return cfg


def read_any(path: str | Path) -> Config:
    """Read a config file."""
    if not Path(path).is_file():
        raise missing('config file', path)
    try:
        cfg = Config.fromfile(path)
    except ImportError as error:
        raise UserError(
            f'the config {path} cannot be read: {summary(_first(error))}. Of '
            'a module of yours, put the folder on the PYTHONPATH: '
            'PYTHONPATH=FOLDER python ...'
        ) from error
    # A config is a program, which may raise anything.
    except Exception as error:
        raise UserError(
            f'the config {path} cannot be read: {summary(error)}. Mend it, or '
            'take another.'
        ) from error
    _drop_scope(cfg._cfg_dict)
    return cfg


def _first(error: BaseException) -> BaseException:
    """What the others were raised from; MMEngine's list sys.path."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return error


def override(cfg: Config, options: dict) -> None:
    """Override parts of a config by their dotted paths."""
    known = KNOWN | set(cfg)
    for path, value in options.items():
        first = path.partition('.')[0]
        if first not in known:
            raise UserError(
                f'--cfg-options {path}={value} would have no effect, as '
                f'{cfg.filename} has no {first}: {nearest(first, known)}'
            )
        _changes.setdefault(cfg.filename, []).append(f'{path}={value}')
        try:
            cfg.merge_from_dict({path: value})
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f'--cfg-options {path}={value} does not fit '
                f'{cfg.filename}: {summary(error)}. Override '
                f'{_deepest(cfg, path)} as a whole, or a part that it has.'
            ) from error


def _deepest(cfg: Config, path: str) -> str:
    """The part of a dotted path that a config has."""
    names = path.split('.')
    while cfg.get('.'.join(names)) is None and len(names) > 1:
        names.pop()
    return '.'.join(names)


def config_folder() -> Path:
    """The configs: in an installed package its own, or the checkout's."""
    folders = [_PACKAGE / '.mim/configs', _PACKAGE.parent / 'configs']
    for folder in folders:
        if folder.is_dir():
            return folder
    raise UserError(
        f'clustr_mm has no configs, neither {folders[0]} nor {folders[1]}: '
        'install it again, or run in a checkout'
    )


def is_recipe(path: Path) -> bool:
    """Whether a config of ours is a paper's model, and not a small one."""
    return not _NO_RECIPES & set(path.parts)


def describe(cfg: Config) -> str:
    """The name of a config, and what --cfg-options has changed in it."""
    changes = _changes.get(cfg.filename, [])
    name = str(cfg.filename)
    return f'{name} with {" ".join(changes)}' if changes else name


def walk(node: Any, path: str = '') -> Iterator[tuple[str, dict]]:
    """All dicts of a config, with their dotted paths.

    Args:
        node: A config or a part of one.
        path (str): Where the part is; nothing for a whole config.
    """
    if isinstance(node, Config):
        node = node._cfg_dict
    if isinstance(node, dict):
        yield path, node
        children = list(node.items())
    elif isinstance(node, (list, tuple)):
        children = list(enumerate(node))
    else:
        return
    for key, child in children:
        yield from walk(child, f'{path}.{key}' if path else str(key))


def get(cfg: Config, path: str) -> Any:
    """What a config has at a dotted path; None if it has no such path."""
    node = cfg
    for key in path.split('.'):
        if not isinstance(node, (dict, Config)) or key not in node:
            return None
        node = node[key]
    return node


def type_of(part: Any) -> str | None:
    """The type of a part of a config, without the module or scope of it."""
    if not isinstance(part, dict) or part.get('type') is None:
        return None
    kind = part['type']
    return getattr(kind, '__name__', str(kind).rsplit('.', 1)[-1])


def add_hook(cfg: Config, kind: str, **options) -> None:
    """Add a hook to a config that has none of its type."""
    hooks = cfg.get('custom_hooks') or []
    others = cfg.get('default_hooks') or {}
    if not isinstance(hooks, (list, tuple)) or not isinstance(others, dict):
        return  # what is wrong there, MMEngine says
    if kind not in map(type_of, [*hooks, *others.values()]):
        # A config stores copies of lists, which must be complete by then.
        cfg.custom_hooks = [*hooks, dict(type=kind, **options)]


def imports_of(cfg: Config) -> list[str]:
    """The modules that a config has imported; MMEngine takes one as text."""
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    return [imports] if isinstance(imports, str) else list(imports)


def add_import(cfg: Config, *modules: str) -> None:
    """Import modules that a config names types of, now and wherever it goes.

    What is built from a dump of the config finds the same types.
    """
    for module in modules:
        import_module(module)
    imports = dict.fromkeys([*imports_of(cfg), *modules])
    cfg.custom_imports = ConfigDict(
        cfg.get('custom_imports') or {}, imports=list(imports)
    )


def _drop_scope(node: Any) -> None:
    """Remove our mark everywhere below ``node``."""
    for _, part in walk(node):
        if part.get('_scope_') == _NAME:
            del part['_scope_']
