"""What the model zoo says about weights that others have published."""

from itertools import groupby

from clustr_mm.checkpoints.published import PREFIX, Weights, table

_HEAD = """
## Published weights

Weights that the papers' authors have published, and those that they start
from. `published:NAME` [loads them](training.md#weights-to-start-from) wherever
a checkpoint is expected, and `clustr_mm.get_model` in Python. The accuracies
are their authors', on ImageNet at 224 x 224 unless the name says otherwise;
**nothing was measured here**. The commands are what would reproduce them.
Nobody has published ClusTR, Token Pooling, or EViT distilled from DINOv2.
"""
_TABLE = """
| name | top-1, the authors' | command, after `python tools/test.py` |
|---|---:|---|
"""
_MIM = """
### By MIM

    mim download clustr_mm --config deit_s_imagenet --dest weights

fetches the file of `published:deit-small` and dumps the config; in the same
way those of `lvvit_*_imagenet`, `hvt_*_imagenet` and `tome_s_r13_imagenet`.
Other addresses do not end with the name of a file, which MIM wants. It
compares no hash and leaves the file as its authors have written it. With
`CLUSTR_MM_WEIGHTS=weights`, `published:NAME` finds it there by its name and
does both. The metafiles follow what MIM 0.3.10 reads in its source; **it was
not run here**.
"""


def published_weights() -> str:
    """The section of the page, a table a project."""
    parts = [_HEAD]
    projects = groupby(table().values(), key=lambda weights: weights.project)
    for project, group in projects:
        group = list(group)
        code, licence = group[0].code, group[0].licence
        if '-NC-' in licence:
            licence += ', **not for commercial use**'
        parts.append(f'\n[{project}]({code}), {licence}:\n{_TABLE}')
        parts += [_row(weights) for weights in group]
    return ''.join([*parts, _MIM])


def _row(weights: Weights) -> str:
    name = PREFIX + weights.name
    top1 = '' if weights.top1 is None else str(weights.top1)
    command = 'has no head: for an `init_cfg`'
    if weights.config:
        words = [f'configs/{weights.config}', name]
        if weights.options:
            words.append('--cfg-options')
        words += [f'{k}={v}' for k, v in weights.options.items()]
        command = f'`{" ".join(words)}`'
    return f'| [`{name}`]({weights.urls[0]}) | {top1} | {command} |\n'
