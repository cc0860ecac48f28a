"""Published checkpoints in our names, and back.

A layout lists the names of a published state dict beside ours; `*` is the
number of a block or stage. A file that lacks a name, or has one too many, is
refused rather than read in part.
"""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from clustr_mm.errors import UserError, summary
from clustr_mm.outputs import write_atomically
from . import replacements, safe_loading

StateDict = dict[str, Tensor]


class CheckpointError(UserError, ValueError):
    """A checkpoint cannot be read, or is not what it is said to be."""


class Group(NamedTuple):
    """Names, theirs to ours, of which a file has all or, if optional, none.

    Or it has all of ``instead``.
    """

    names: dict[str, str]
    optional: bool = False
    instead: dict[str, str] = {}


def group(
    names: dict[str, str] | list[str],
    leaves: str = 'weight bias',
    optional: bool = False,
) -> Group:
    """Names of modules' parameters; a list for those of the same name.

    Without ``leaves``, what is named are the parameters themselves.
    """
    if isinstance(names, list):
        names = {name: f'backbone.{name}' for name in names}
    if leaves:
        names = {
            f'{theirs}.{leaf}': f'{ours}.{leaf}'
            for theirs, ours in names.items()
            for leaf in leaves.split()
        }
    return Group(names, optional)


TRUNK = [
    group(['pos_embed'], leaves=''),
    group(['patch_embed.proj']),
    group(['blocks.*.norm1', 'blocks.*.attn.proj']),
    group(['blocks.*.norm2', 'blocks.*.mlp.fc1', 'blocks.*.mlp.fc2']),
    group(['blocks.*.attn.qkv'], leaves='weight'),
    group(['blocks.*.attn.qkv'], leaves='bias', optional=True),
    group({'head': 'head.fc'}, optional=True),
]
NORM = group(['norm'])
CLS_TOKEN = group(['cls_token'], leaves='')
LAYER_SCALE = group(
    {
        'blocks.*.ls1.gamma': 'backbone.blocks.*.ls1.weight',
        'blocks.*.ls2.gamma': 'backbone.blocks.*.ls2.weight',
    },
    leaves='',
)
PREDICTORS = group(
    {
        f'score_predictor.*.{theirs}': f'backbone.reducers.*.predictor.{ours}'
        for theirs, ours in {
            'in_conv.0': 'features.0',
            'in_conv.1': 'features.1',
            'out_conv.0': 'score.0',
            'out_conv.2': 'score.2',
            'out_conv.4': 'score.4',
        }.items()
    }
)
STEM = [
    group(
        {
            f'patch_embed.conv{i + 1}': f'backbone.patch_embed.stem.{i}.conv'
            for i in range(3)
        },
        leaves='weight',
    ),
    group(
        {
            f'patch_embed.bn{i + 1}': f'backbone.patch_embed.stem.{i}.bn'
            for i in range(3)
        },
        leaves='weight bias running_mean running_var num_batches_tracked',
    ),
]
DEIT = [*TRUNK, NORM, CLS_TOKEN]
LAYOUTS = {
    'deit': DEIT,
    'evit': DEIT,
    'dynamicvit': [*DEIT, PREDICTORS],
    'hvt': [
        *TRUNK,
        NORM,
        # In the file with the blocks that are pooled after; `_number_stages`.
        group(
            {'stages.*.pos_embed': 'backbone.reducers.*.pos_embed'},
            leaves='',
            optional=True,
        ),
    ],
    'lvvit': [
        *DEIT,
        *STEM,
        group({'aux_head': 'head.token_fc'}, optional=True),
        PREDICTORS._replace(optional=True),
    ],
    'dinov2': [
        *DEIT,
        LAYER_SCALE,
        # Of use in its own training only.
        group({'mask_token': 'unused.mask_token'}, leaves='', optional=True),
    ],
    'timm-vit': [
        *TRUNK,
        CLS_TOKEN._replace(optional=True),
        LAYER_SCALE._replace(optional=True),
        # A model that averages its tokens normalises their mean alone.
        # One may also have neither.
        NORM._replace(optional=True, instead=group(['fc_norm']).names),
    ],
    'mmpretrain-vit': [
        group({'backbone.pos_embed': 'backbone.pos_embed'}, leaves=''),
        group(
            {'backbone.cls_token': 'backbone.cls_token'},
            leaves='',
            optional=True,
        ),
        group(
            {
                'backbone.patch_embed.projection': 'backbone.patch_embed.proj',
                'backbone.layers.*.ln1': 'backbone.blocks.*.norm1',
                'backbone.layers.*.attn.proj': 'backbone.blocks.*.attn.proj',
                'backbone.layers.*.ln2': 'backbone.blocks.*.norm2',
                'backbone.layers.*.ffn.layers.0.0': (
                    'backbone.blocks.*.mlp.fc1'
                ),
                'backbone.layers.*.ffn.layers.1': 'backbone.blocks.*.mlp.fc2',
            }
        ),
        group(
            {'backbone.layers.*.attn.qkv': 'backbone.blocks.*.attn.qkv'},
            leaves='weight',
        ),
        group(
            {'backbone.layers.*.attn.qkv': 'backbone.blocks.*.attn.qkv'},
            leaves='bias',
            optional=True,
        ),
        group(
            {
                'backbone.layers.*.attn.gamma1': 'backbone.blocks.*.ls1',
                'backbone.layers.*.ffn.gamma2': 'backbone.blocks.*.ls2',
            },
            leaves='weight',
            optional=True,
        ),
        group({'backbone.ln1': 'backbone.norm'}, optional=True),
        group({'backbone.ln2': 'backbone.fc_norm'}, optional=True),
        group({'head.fc': 'head.fc'}, optional=True),
        group({'head.layers.head': 'head.layers.head'}, optional=True),
    ],
}


def convert(state_dict: StateDict, source: str) -> StateDict:
    """A published state dict in our names.

    Those of the backbone begin with ``backbone.``, those of a head, which
    fit ``LinearClsHead`` and ``TokenLabelHead``, with ``head.``, and what
    our models have no use for with ``unused.``.

    Args:
        state_dict (StateDict): The published one.
        source (str): Its layout, one of ``LAYOUTS``.

    Raises:
        CheckpointError: If names are missing or unexpected.
    """
    if source == 'hvt':
        state_dict = _number_stages(state_dict)
    return _rename(state_dict, _layout(source), source)


def revert(
    state_dict: StateDict,
    source: str,
    reduce_at: list[int] | None = None,
) -> StateDict:
    """The inverse of :func:`convert`.

    Args:
        state_dict (StateDict): A state dict in our names.
        source (str): The published layout.
        reduce_at (list[int], optional): For ``'hvt'`` the blocks that are
            pooled after, if not the first of each stage.
    """
    layout = [
        Group(_swapped(names), optional, _swapped(instead))
        for names, optional, instead in _layout(source)
    ]
    state_dict = _rename(state_dict, layout, f'reverted {source}')
    if source == 'hvt':
        state_dict = _place_stages(state_dict, reduce_at)
    return state_dict


def read(path: str | Path) -> StateDict:
    """The state dict in a checkpoint of any of these projects."""
    try:
        file = safe_loading.load(path, map_location='cpu')
    except UserError as error:
        # By a tool, whose arguments that names.
        if replacements.is_installed():
            raise
        raise _refusal(path, error) from error
    return weights_in(file, path)


def weights_in(file: object, path: str | Path) -> StateDict:
    """The state dict in what a checkpoint holds."""
    for key in ('state_dict', 'model'):
        if isinstance(file, Mapping) and isinstance(file.get(key), Mapping):
            file = file[key]
    if not isinstance(file, Mapping) or not all(
        isinstance(value, Tensor) for value in file.values()
    ):
        raise CheckpointError(
            f'{path} holds no state dict: give a file of tensors by name'
        )
    # What DistributedDataParallel adds.
    return {key.removeprefix('module.'): file[key] for key in file}


def _refusal(path: str | Path, error: UserError) -> CheckpointError:
    """What to say to somebody without a tool's arguments."""
    reason = summary(error.__cause__, 200)
    if isinstance(error, safe_loading.UnsafeCheckpointError):
        return CheckpointError(
            f'{path} does not hold tensors alone, and loading anything else '
            'could run foreign code. If you trust it, save its state dict to '
            f'a file of its own, or take another. ({reason})'
        )
    if isinstance(error.__cause__, (FileNotFoundError, IsADirectoryError)):
        return CheckpointError(error)
    return CheckpointError(
        f'{path} is no checkpoint, or only a part of one ({reason}). Copy or '
        'download it again, or take another.'
    )


def convert_file(src: str | Path, dst: str | Path, source: str) -> StateDict:
    """Convert ``src`` to ``dst``, which appears only when it is complete."""
    state_dict = read(src)
    try:
        state_dict = convert(state_dict, source)
    except CheckpointError as error:
        raise CheckpointError(
            f'{error} So --from {source} does not fit {src}: choose the '
            'layout that the file has, or take another file.'
        ) from error
    return write_converted(state_dict, dst, source)


def write_converted(
    state_dict: StateDict, dst: str | Path, source: str
) -> StateDict:
    """Write what was converted; return what our models have a use for."""
    unused = {k: v for k, v in state_dict.items() if k.startswith('unused.')}
    used = {k: v for k, v in state_dict.items() if k not in unused}
    file = {'meta': {'source': source}, 'state_dict': used, 'unused': unused}
    dst = Path(dst)
    data = io.BytesIO()
    torch.save(file, data)
    try:
        dst.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(dst, data.getvalue())
    except OSError as error:
        raise CheckpointError(
            f'cannot write {dst} ({summary(error)}): give another file'
        ) from error
    return used


def _swapped(names: dict[str, str]) -> dict[str, str]:
    return {ours: theirs for theirs, ours in names.items()}


def _layout(source: str) -> list[Group]:
    if source not in LAYOUTS:
        raise CheckpointError(
            f'unknown layout {source!r}: choose from {list(LAYOUTS)}'
        )
    return LAYOUTS[source]


def _rename(
    state_dict: StateDict, layout: list[Group], what: str
) -> StateDict:
    """Rename all keys, if they are those of the layout."""
    names, missing = _expand(state_dict, layout)
    unexpected = state_dict.keys() - names.keys()
    if missing or unexpected:
        raise CheckpointError(
            f'this is no {what} checkpoint. Missing: {_listed(missing)}. '
            f'Unexpected: {_listed(unexpected)}.{_advice(state_dict)}'
        )
    return {names[key]: value for key, value in state_dict.items()}


def _expand(
    state_dict: StateDict, layout: list[Group]
) -> tuple[dict[str, str], set[str]]:
    """Names with numbers for `*`, and those of them that are missing."""
    counts = _counts(state_dict)
    expanded, missing = {}, set()
    for names, optional, instead in layout:
        if instead.keys() & state_dict.keys():
            names = instead
        here = {}
        for theirs, ours in names.items():
            prefix, star, _ = theirs.partition('*')
            for i in range(max(counts.get(prefix, 0), 1) if star else 1):
                here[theirs.replace('*', str(i))] = ours.replace('*', str(i))
        if not optional or here.keys() & state_dict.keys():
            expanded |= here
            missing |= here.keys() - state_dict.keys()
    return expanded, missing


def _counts(state_dict: StateDict) -> dict[str, int]:
    """How many numbered modules there are, by their first name."""
    counts = {}
    for key in state_dict:
        match = re.match(r'(\D*\.)(\d+)\.', key)
        # No file has more modules than keys.
        if match and int(match[2]) < len(state_dict):
            prefix, count = match[1], int(match[2]) + 1
            counts[prefix] = max(counts.get(prefix, 0), count)
    return counts


def _listed(names: set[str], most: int = 20) -> str:
    listed = ', '.join(sorted(names)[:most]) or 'nothing'
    more = len(names) - most
    return f'{listed} and {more} more' if more > 0 else listed


def _advice(state_dict: StateDict) -> str:
    """Which layouts the names would fit."""
    fitting = []
    for source, layout in LAYOUTS.items():
        keys = _number_stages(state_dict) if source == 'hvt' else state_dict
        names, missing = _expand(keys, layout)
        if not missing and keys.keys() == names.keys():
            fitting.append(source)
    return f' It looks like {" or ".join(fitting)}.' if fitting else ''


def _number_stages(state_dict: StateDict) -> StateDict:
    """Name HVT's stage position embeddings by stage instead of by block."""
    pattern = re.compile(r'blocks\.(\d+)\.pos_embed')
    blocks = sorted(int(m[1]) for m in map(pattern.fullmatch, state_dict) if m)
    stages = {
        f'blocks.{block}.pos_embed': f'stages.{stage}.pos_embed'
        for stage, block in enumerate(blocks)
    }
    return {stages.get(key, key): state_dict[key] for key in state_dict}


def _place_stages(
    state_dict: StateDict, reduce_at: list[int] | None
) -> StateDict:
    """The inverse of :func:`_number_stages`."""
    counts = _counts(state_dict)
    depth, stages = counts['blocks.'], counts.get('stages.', 0)
    if reduce_at is None:
        reduce_at = [stage * depth // stages for stage in range(stages)]
    if len(reduce_at) != stages:
        raise CheckpointError(
            f'there are {stages} stages, but reduce_at is {reduce_at}'
        )
    blocks = {
        f'stages.{stage}.pos_embed': f'blocks.{block}.pos_embed'
        for stage, block in enumerate(reduce_at)
    }
    return {blocks.get(key, key): state_dict[key] for key in state_dict}
