"""The models of the configs, by name.

>>> import clustr_mm
>>> clustr_mm.list_models('evit_s_k0*')
>>> clustr_mm.get_model('evit_s_k07_imagenet', pretrained=True)
>>> clustr_mm.get_backbone('clustr_s', out_indices=(0, 1, 2, 3))
"""

from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import nn

from clustr_mm import configs
from clustr_mm.analysis.models import build_model, read_config
from clustr_mm.arguments import check_types
from clustr_mm.checkpoints import load_weights, published
from clustr_mm.errors import UserError, building
from clustr_mm.registry import MODELS

# Of the classifiers, which a shorter name stands for too.
_USUAL = '_imagenet'


@check_types
def list_models(pattern: str = '*', pretrained: bool = False) -> list[str]:
    """Names of the models that there are configs of.

    Args:
        pattern (str): Which of them; *, ? and [] as in a shell.
        pretrained (bool): Whether only those whose weights somebody has
            published.
    """
    return [
        name
        for name, path in _paths().items()
        if fnmatchcase(name, pattern)
        and not (pretrained and _published(path, {}) is None)
    ]


@check_types
def get_model(
    name: str,
    pretrained: bool | str | Path = False,
    options: dict[str, Any] | None = None,
) -> nn.Module:
    """A whole model in eval mode, as the tools build it.

    Args:
        name (str): One of `list_models`. ``_imagenet`` may be left out.
        pretrained (bool | str | Path): Whether with published weights; or
            which ones, by their name, or a file of yours. Without, weights
            are random: call ``init_weights`` to train them.
        options (dict, optional): What to change in the config, by dotted
            paths, as ``--cfg-options`` does.
    """
    path = _find(name)
    options = options or {}
    cfg = read_config(str(path), options)
    model = build_model(cfg)
    if pretrained is not False:
        load_weights(model, _weights(path, options, pretrained), prefix='')
    return model


@check_types
def get_backbone(
    name: str, pretrained: bool | str | Path = False, **options: Any
) -> nn.Module:
    """The backbone of a model in eval mode.

    Args:
        name (str): As of `get_model`.
        pretrained (bool | str | Path): As of `get_model`.
        options: Arguments of the backbone that differ from the config's,
            such as ``out_indices`` and ``out_type``.
    """
    path = _find(name)
    cfg = Config.fromfile(path)
    model = nn.Module()
    with (
        # Its own modules are in the root registry; others keep their scope.
        DefaultScope.overwrite_default_scope('mmengine'),
        building(f'the backbone of {name}', 'Mend its options.'),
    ):
        model.backbone = MODELS.build({**cfg.model.backbone, **options})
    if pretrained is not False:
        load_weights(model, _weights(path, {}, pretrained))
    return model.backbone.eval()


def _paths() -> dict[str, Path]:
    """The configs by their names, in alphabetical order."""
    folder = configs.config_folder()
    paths = sorted(folder.rglob('*.py'), key=lambda path: path.stem)
    return {
        path.stem: path
        for path in paths
        if configs.is_recipe(path.relative_to(folder))
    }


def _find(name: str) -> Path:
    paths = _paths()
    for full in (name, name + _USUAL):
        if full in paths:
            return paths[full]
    known = dict.fromkeys([*paths, *(n.removesuffix(_USUAL) for n in paths)])
    close = get_close_matches(name, known, 3, 0.4)
    names = ', '.join(close) or 'one of list_models()'
    raise UserError(f'there is no model {name}: take {names}')


def _published(path: Path, options: dict[str, Any]) -> str | None:
    """The published weights of a config's model."""
    config = path.relative_to(configs.config_folder()).as_posix()
    for weights in published.table().values():
        of_model = {
            key: value
            for key, value in weights.options.items()
            if key.startswith('model.')
        }
        if weights.config == config and of_model == options:
            return published.PREFIX + weights.name
    return None


def _weights(
    path: Path, options: dict[str, Any], pretrained: bool | str | Path
) -> str | Path:
    """What ``pretrained`` asks for."""
    if pretrained is not True:
        return pretrained
    name = _published(path, options)
    if name is None:
        changed = f' with {options}' if options else ''
        raise UserError(
            f'nobody has published weights of {path.stem}{changed}: say by '
            'pretrained=FILE where yours are, or take another of '
            'list_models(pretrained=True)'
        )
    return name
