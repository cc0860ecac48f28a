"""Config files, also those that inherit from the ones of this package.

MMEngine resolves ``_base_ = 'clustr_mm::evit/fpn_evit_s_k07_ade20k.py'`` for
packages that it has on a list, and marks what comes from there with the
package's scope. This package has none, as its modules are in the root
registries: a model so marked would not find the toolbox's.
"""

import argparse
import inspect
from difflib import get_close_matches
from pathlib import Path

from mmengine.config import Config, DictAction
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.runner import Runner

from .errors import UserError, summary

_NAME = __package__
MODULE2PACKAGE.setdefault(_NAME, _NAME)

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


def add_options(parser: argparse.ArgumentParser):
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
    if Path(path).is_dir():
        raise UserError(f'{path} is a folder: give a config file')
    if not Path(path).is_file():
        raise UserError(f'there is no config file {path}')
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


def override(cfg: Config, options: dict):
    """Override parts of a config by their dotted paths."""
    known = KNOWN | set(cfg)
    for path, value in options.items():
        first = path.partition('.')[0]
        if first not in known:
            close = get_close_matches(first, known, 1)
            hint = f'did you mean {close[0]}?' if close else 'check its name'
            raise UserError(
                f'--cfg-options {path}={value} would have no effect, as '
                f'{cfg.filename} has no {first}: {hint}'
            )
        _changes.setdefault(cfg.filename, []).append(f'{path}={value}')
        try:
            cfg.merge_from_dict({path: value})
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f'--cfg-options {path}={value} does not fit '
                f'{cfg.filename}: {summary(error)}. Look at what is there.'
            ) from error


def describe(cfg: Config) -> str:
    """The name of a config, and what --cfg-options has changed in it."""
    changes = _changes.get(cfg.filename, [])
    name = str(cfg.filename)
    return f'{name} with {" ".join(changes)}' if changes else name


def _drop_scope(node):
    """Remove our mark everywhere below ``node``."""
    if isinstance(node, dict):
        if node.get('_scope_') == _NAME:
            del node['_scope_']
        node = node.values()
    elif not isinstance(node, (list, tuple)):
        return
    for child in node:
        _drop_scope(child)
