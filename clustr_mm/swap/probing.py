"""What parts of a model hand out, found by running them."""

import inspect
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import nn

from clustr_mm.configs import type_of
from clustr_mm.errors import UserError, summary
from clustr_mm.registry import MODELS
from clustr_mm.toolboxes import toolbox_of

SIDE = 256  # of the picture, unless a part takes no other than its own


class StockError(UserError):
    """A config does not work here with its own backbone."""


@dataclass
class Output:
    """A map that a part hands out; a vector has no stride."""

    channels: int
    stride: int | None


def parse(text: str) -> list[Output]:
    """Outputs in a user's words: ``'256,4 512,8'``, or ``'384'`` a vector."""
    number = '[1-9][0-9]*'
    fmap = f'{number},{number}'
    if not re.fullmatch(rf'\s*({number}|{fmap}(\s+{fmap})*)\s*', text):
        raise UserError(
            f'--assume {text!r} does not say what a backbone hands out: give '
            "channels and stride of each map, such as '256,4 512,8', or the "
            "length of a vector, such as '384'"
        )
    numbers = [[int(n) for n in word.split(',')] for word in text.split()]
    return [Output(*(*pair, None)[:2]) for pair in numbers]


def outputs_of(cfg: Config) -> list[Output]:
    """What the backbone of somebody's config hands out."""
    backbone, toolbox = cfg.model.backbone, toolbox_of(cfg)
    # Some take images of their own size alone.
    sizes = [(SIDE, SIDE), toolbox.image_size(cfg)]
    if 'img_size' in backbone:
        sizes.insert(0, backbone.img_size)
    try:
        module = _build(backbone, toolbox.scope)
        _refuse_questions(module)
        outputs = _first_result(module, sizes)
    except UserError:
        raise
    except Exception as error:  # of a backbone that is not ours
        raise StockError(
            f'{type_of(backbone)} cannot be built and run to see what it '
            f'hands out: {summary(error)}. Mend that; or, if you know the '
            'channels and strides of its maps, say them: '
            "--assume '256,4 512,8'"
        ) from error
    return outputs


def outputs_of_ours(backbone: dict, scope: str) -> list[Output]:
    """What one of our backbones hands out."""
    return _run(_build(backbone, scope), (SIDE, SIDE))


def hooks_of_ours(backbone: dict, scope: str) -> Sequence[dict]:
    """What a training of one of our backbones needs besides."""
    return _build(backbone, scope).hooks


def after(
    neck: dict | Sequence, before: list[Output], scope: str
) -> list[Output]:
    """What a neck, or one after the other, makes of a backbone's maps."""
    maps = tuple(
        torch.zeros(1, o.channels, SIDE // o.stride, SIDE // o.stride)
        for o in before
    )
    for part in neck if isinstance(neck, (list, tuple)) else [neck]:
        with torch.no_grad():
            maps = _build(part, scope)(maps)
    return _describe(maps, SIDE, type_of(part))


def options_of(part: dict, scope: str) -> Mapping[str, inspect.Parameter]:
    """What the constructor of a part of a model takes."""
    with MODELS.switch_scope_and_registry(scope) as registry:
        return inspect.signature(registry.get(part['type'])).parameters


def _build(part: dict, scope: str) -> nn.Module:
    """A part of a model in eval mode, whose weights do not matter."""
    weights = ('pretrained', 'init_cfg')
    cfg = {k: v for k, v in part.items() if k not in weights}
    with (
        DefaultScope.overwrite_default_scope(scope),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter('ignore')
        module = MODELS.build(cfg)
        module.eval()  # returns nothing in some toolboxes
    return module


def _refuse_questions(module: nn.Module) -> None:
    """Raise an error if a backbone must be given more than a picture."""
    _, *others = inspect.signature(module.forward).parameters.values()
    needed = [
        other.name
        for other in others
        if other.name == 'mask'  # which may have a default
        or other.default is other.empty
        and other.kind is other.POSITIONAL_OR_KEYWORD
    ]
    if needed:
        raise UserError(
            f'{type(module).__name__} is given more than a picture '
            f'({", ".join(needed)}), which none of our backbones takes'
        )


def _first_result(module: nn.Module, sizes: list) -> list[Output]:
    """What comes at the first of some sizes that a backbone takes."""
    failures = []
    for size in sizes:
        size = (size, size) if isinstance(size, int) else tuple(size)
        try:
            return _run(module, size)
        except UserError:
            raise
        except Exception as error:  # of a backbone that is not ours
            failures.append(error)
    raise failures[0]


def _run(module: nn.Module, size: tuple[int, int]) -> list[Output]:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        outs = module(torch.zeros(1, 3, *size))
    return _describe(outs, size[0], type(module).__name__)


def _describe(outs, side: int, name: str) -> list[Output]:
    outs = [outs] if isinstance(outs, torch.Tensor) else list(outs)
    if not all(isinstance(out, torch.Tensor) for out in outs):
        raise UserError(
            f'{name} hands out more than maps: the rest of its model cannot '
            'be fed by another backbone'
        )
    return [
        Output(out.shape[1], side // out.shape[-2] if out.ndim == 4 else None)
        for out in outs
    ]
