"""Bad inputs of the tools, as products of what is spoilt and how.

``{m}`` in an argument is the folder of `materials`; all else is relative to
the folder that a case runs in.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import product
from pathlib import Path

import torch

from .harness import ADVICE, PLACE
from .materials import SHAPE


@dataclass
class Case:
    """One call of a tool.

    Attributes:
        tool, args: What is called.
        about: What is bad, for the case's name.
        names: What the message must name, as words of their own.
        spoil: Writes the bad input into the case's folder, given it and the
            folder of the materials.
        env: Variables of the environment.
        legal: Whether the input is only unusual, and the tool must end well.
        advice: What the message must tell: what to do, or what is allowed.
    """

    tool: str
    args: list[str]
    about: str
    names: tuple = ()
    spoil: Callable[[Path, Path], None] = field(
        default=lambda folder, materials: None, repr=False
    )
    _: KW_ONLY
    env: dict = field(default_factory=dict)
    legal: bool = False
    advice: str | re.Pattern = ADVICE

    @property
    def id(self) -> str:
        return f'{self.tool.removesuffix(".py")}: {self.about}'


class Runs:
    """Pickled as a call that leaves a mark where it is run."""

    def __reduce__(self):
        return os.mkdir, ('mark-of-a-program-that-was-run',)


def writes(name: str, content: bytes | str | None):
    """Makes a file, or a folder of None."""

    def spoil(folder: Path, materials: Path):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.mkdir()
        elif isinstance(content, str):
            path.write_text(content)
        else:
            path.write_bytes(content)

    return spoil


def nothing(folder: Path, materials: Path):
    """What is missing needs no preparation."""


# The commands, with {} in the place of one argument or another.

TRAIN = ['{m}/classify.py', '--data-root', '{m}/classify']
SEARCH = [
    *('{m}/search.py', '--base', '{m}/base.py', '--out', 'keep.py'),
    *('--data-root', '{m}/classify'),
]
COMMANDS = {
    'train.py': TRAIN,
    'test.py': ['{m}/classify.py', '{m}/classify.pth', *TRAIN[1:]],
    'search_keep.py': SEARCH,
    'get_flops.py': ['{m}/classify.py'],
    'benchmark.py': [
        *('config', '{m}/classify.py', '--batch', '1', '--rounds', '2'),
        *('--budget', '1'),
    ],
    'export_onnx.py': ['{m}/classify.py', '{m}/classify.pth', 'out.onnx'],
    'visualize_tokens.py': [
        *('{m}/image.png', '{m}/classify.py', '{m}/classify.pth'),
        *('--out', 'pictures'),
    ],
    'swap_backbone.py': ['{m}/classify.py', 'evit_s_k07', '--out', 'new.py'],
    'convert_checkpoint.py': ['{m}/deit.pth', 'new.pth', '--from', 'deit'],
    'publish_model.py': ['{m}/classify.pth', 'given.pth'],
    'make_shapes.py': [
        *('--task', 'detection', '--out', 'shapes', '--num', '4'),
        *('--size', '32', '--val', '0.5'),
    ],
    'paper_tables.py': ['--only', 'HVT-S-1'],
    'smoke.py': ['--only', 'hvt_s1_imagenet'],
    'quickstart.py': ['--num', '10'],
}


def replaced(tool: str, old: str, new: str) -> list[str]:
    assert old in COMMANDS[tool], (tool, old)
    return [new if arg == old else arg for arg in COMMANDS[tool]]


# Config files.

CONFIGS = {
    'missing': ('no.py', nothing),
    'a folder': ('bad.py', writes('bad.py', None)),
    'empty': ('bad.py', writes('bad.py', '')),
    'cut off': ('bad.py', writes('bad.py', 'model = dict(type="EViT", ba')),
    'of random bytes': ('bad.py', writes('bad.py', bytes(range(256)))),
    'of unknown kind': ('bad.txt', writes('bad.txt', 'model = dict()')),
    'raising': ('bad.py', writes('bad.py', 'model = 1 / 0\n')),
    'without its base': (
        'bad.py',
        writes('bad.py', "_base_ = './nowhere.py'\n"),
    ),
    'with a model that is a number': ('bad.py', writes('bad.py', 'model=3\n')),
    'broken JSON': ('bad.json', writes('bad.json', '{"model": ')),
}
TAKES_CONFIG = (
    *('train.py', 'test.py', 'search_keep.py', 'get_flops.py'),
    *('benchmark.py', 'export_onnx.py', 'visualize_tokens.py'),
    'swap_backbone.py',
)


def bad_configs() -> Iterator[Case]:
    for tool, (kind, (name, spoil)) in product(TAKES_CONFIG, CONFIGS.items()):
        old = '{m}/search.py' if tool == 'search_keep.py' else TRAIN[0]
        args = replaced(tool, old, name)
        yield Case(tool, args, f'config {kind}', (name,), spoil)
    for kind, (name, spoil) in CONFIGS.items():
        args = replaced('search_keep.py', '{m}/base.py', name)
        about = f'base config {kind}'
        yield Case('search_keep.py', args, about, (name,), spoil)


# Checkpoints.


def cut(name: str, share: float):
    def spoil(folder: Path, materials: Path):
        content = (materials / name).read_bytes()
        (folder / 'bad.pth').write_bytes(content[: int(share * len(content))])

    return spoil


def saves(make: Callable[[Path], object]):
    def spoil(folder: Path, materials: Path):
        torch.save(make(materials), folder / 'bad.pth')

    return spoil


def zips(folder: Path, materials: Path):
    shutil.make_archive(folder / 'bad', 'zip', materials / 'segment')
    (folder / 'bad.zip').rename(folder / 'bad.pth')


def other_model(materials: Path) -> dict:
    return dict(state_dict={f'features.{i}': torch.ones(3) for i in range(9)})


CHECKPOINTS = {
    'missing': nothing,
    'a folder': writes('bad.pth', None),
    'empty': writes('bad.pth', b''),
    'text': writes('bad.pth', 'version https://git-lfs.github.com/spec/v1\n'),
    'cut in its head': cut('classify.pth', 0.01),
    'cut in the middle': cut('classify.pth', 0.5),
    'cut at its end': cut('classify.pth', 0.99),
    'a zip of pictures': zips,
    'a program': saves(lambda m: dict(state_dict=dict(a=Runs()))),
    'a list': saves(lambda m: [1, 2, 3]),
    'of numbers': saves(lambda m: dict(state_dict=dict(a=3))),
    'of another model': saves(other_model),
}


def bad_checkpoints() -> Iterator[Case]:
    commands = {
        'test.py': replaced('test.py', '{m}/classify.pth', 'bad.pth'),
        'train.py': [*TRAIN, '--resume', 'bad.pth'],
        'search_keep.py': [*SEARCH, '--resume', 'bad.pth'],
        'export_onnx.py': replaced(
            'export_onnx.py', '{m}/classify.pth', 'bad.pth'
        ),
        'visualize_tokens.py': replaced(
            'visualize_tokens.py', '{m}/classify.pth', 'bad.pth'
        ),
        'convert_checkpoint.py': replaced(
            'convert_checkpoint.py', '{m}/deit.pth', 'bad.pth'
        ),
        'publish_model.py': replaced(
            'publish_model.py', '{m}/classify.pth', 'bad.pth'
        ),
    }
    for (tool, args), (kind, spoil) in product(
        commands.items(), CHECKPOINTS.items()
    ):
        if tool == 'publish_model.py' and kind == 'of another model':
            continue  # it asks for no model
        yield Case(tool, args, f'checkpoint {kind}', ('bad.pth',), spoil)
    starts = {
        'load_from': 'load_from=bad.pth',
        'init_cfg': 'model.backbone.init_cfg.type=Pretrained '
        'model.backbone.init_cfg.checkpoint=bad.pth',
    }
    for (way, options), (kind, spoil) in product(
        starts.items(), CHECKPOINTS.items()
    ):
        args = [*TRAIN, '--cfg-options', *options.split()]
        yield Case('train.py', args, f'{way} {kind}', ('bad.pth',), spoil)


# Published weights.

NO_NETWORK = dict(
    CLUSTR_MM_WEIGHTS='',
    TORCH_HOME='work',
    https_proxy='http://127.0.0.1:9',  # where nobody listens
)
PUBLISHED = {
    'unknown': ('published:deit-smal', {}, ('published:deit-small',)),
    'without a name': ('published:', {}, ('published:deit-tiny',)),
    'that cannot be reached': (
        'published:deit-small',
        NO_NETWORK,
        ('dl.fbaipublicfiles.com', 'work/', 'CLUSTR_MM_WEIGHTS=DIR'),
    ),
    'in a folder that is missing': (
        'published:deit-small',
        dict(CLUSTR_MM_WEIGHTS='nowhere'),
        ('nowhere/deit_small_patch16_224-cd65a155.pth', 'https://'),
    ),
    'in a folder that is a file': (
        'published:deit-small',
        dict(CLUSTR_MM_WEIGHTS='file'),
        ('file/deit_small_patch16_224-cd65a155.pth', 'https://'),
    ),
}


def bad_names() -> Iterator[Case]:
    init = 'model.backbone.init_cfg'
    commands = {
        'load_from': [*TRAIN, '--cfg-options', 'load_from=NAME'],
        'init_cfg': [
            *(*TRAIN, '--cfg-options', f'{init}.type=Pretrained'),
            f'{init}.checkpoint=NAME',
        ],
    }
    ways = [('train.py', way, args) for way, args in commands.items()]
    for tool in ('test.py', 'export_onnx.py', 'visualize_tokens.py'):
        args = replaced(tool, '{m}/classify.pth', 'NAME')
        ways.append((tool, 'checkpoint', args))
    args = ['NAME', 'new.pth']  # whose layout the name tells
    ways.append(('convert_checkpoint.py', 'checkpoint', args))
    for (tool, way, args), (kind, (name, env, said)) in product(
        ways, PUBLISHED.items()
    ):
        args = [arg.replace('NAME', name) for arg in args]
        about = f'{way} published {kind}'
        file = writes('file', 'dear to somebody')
        yield Case(tool, args, about, said, file, env=env)
    for tool, command in (('train.py', TRAIN), ('search_keep.py', SEARCH)):
        args = [*command, '--resume', 'published:deit-small']
        yield Case(tool, args, '--resume published', ('load_from',))


# Where results go.

DESTINATIONS = {
    'test.py': ['--out', 'pkl'],
    'export_onnx.py': ['out.onnx', 'onnx'],
    'swap_backbone.py': ['new.py', 'py'],
    'search_keep.py': ['keep.py', 'py'],
    'convert_checkpoint.py': ['new.pth', 'pth'],
    'publish_model.py': ['given.pth', 'pth'],
    'benchmark.py': ['--plot', 'png'],
}
FOLDERS = {
    'train.py': '--work-dir',
    'test.py': '--work-dir',
    'search_keep.py': '--work-dir',
    'visualize_tokens.py': 'pictures',
    'make_shapes.py': 'shapes',
    'smoke.py': '--out',
    'quickstart.py': '--out',
}


def bad_destinations() -> Iterator[Case]:
    file = writes('file', 'dear to somebody')
    for tool, (old, suffix) in DESTINATIONS.items():
        command = COMMANDS[tool]
        if tool == 'benchmark.py':
            command = ['growth', '--rounds', '1', '--budget', '0.1']
        bad = {
            'a folder': (f'out.{suffix}', writes(f'out.{suffix}', None)),
            'below a file': (f'file/out.{suffix}', file),
            'below a device': (f'/dev/null/out.{suffix}', nothing),
            'where nobody writes': (f'/proc/out.{suffix}', nothing),
        }
        for kind, (name, spoil) in bad.items():
            if old.startswith('--'):
                args = [*command, old, name]
            else:
                args = replaced(tool, old, name)
            yield Case(tool, args, f'result {kind}', (name,), spoil)
    bad = {
        'a file': ('file', file),
        'below a file': ('file/out', file),
        'where nobody writes': ('/proc/out', nothing),
    }
    for (tool, old), (kind, (name, spoil)) in product(
        FOLDERS.items(), bad.items()
    ):
        if old.startswith('--'):
            args = [*COMMANDS[tool], old, name]
        else:
            args = replaced(tool, old, name)
        yield Case(tool, args, f'folder {kind}', (name,), spoil)
    for kind, (name, spoil) in bad.items():
        args = [*COMMANDS['test.py'], '--show-dir', name]
        yield Case('test.py', args, f'--show-dir {kind}', (name,), spoil)


# Options.

WRONG_OPTIONS = {
    'train.py': ['--launcher bash', '--local-rank x', '--resumee x'],
    'test.py': ['--launcher bash', '--out maps', '--tta', '--shwo'],
    'search_keep.py': ['--lambda x', '--lambda -1', '--lambda nan'],
    'get_flops.py': [
        *('--shape 0', '--shape -3 5', '--shape x', '--shape 1 2 3'),
        '--shape 2.5',
    ],
    'benchmark.py': [
        *('--device tpu0', '--device cuda', '--dtype float8'),
        *('--threads 0', '--threads x', '--rounds 0', '--rounds -1'),
        *('--budget 0', '--budget nan', '--batch 0', '--batch x'),
        *('--shape 0 3', '--shape 1 2 3'),
    ],
    'export_onnx.py': ['--shape 0 5', '--shape x 5', '--shape 1 2 3'],
    'visualize_tokens.py': [
        *('--short-side -1', '--short-side x', '--side 0', '--side x'),
        *('--point 2 0', '--point nan 0'),
    ],
    'swap_backbone.py': [
        *('--lr x', '--lr -1', '--lr nan', '--lr 0'),
        *('--assume x', '--assume 64,', '--assume 4,0', '--assume 0'),
    ],
    'convert_checkpoint.py': ['--from vgg', '--fromm deit'],
    'publish_model.py': ['--cofnig x'],
    'make_shapes.py': [
        *('--task chess', '--num 0', '--num -1', '--num x', '--num 1'),
        *('--size 0', '--size 8', '--size 99999', '--size 32 32 32'),
        *('--val 0', '--val 1', '--val nan', '--val -0.5', '--seed -1'),
        '--seed x',
    ],
    'paper_tables.py': ['--only nothing-like-it', '--write-docs', '--jsn'],
    'smoke.py': ['--only nothing-like-it', '--onyl x'],
    'quickstart.py': ['--num 0', '--num x', '--num 2', '--nmu 3'],
}


def wrong_options() -> Iterator[Case]:
    for tool, options in WRONG_OPTIONS.items():
        for option in options:
            # Which some tools have already: the last one counts.
            args = [*COMMANDS[tool], *option.split()]
            # The option and its first value, which is the bad one.
            names = tuple(w.lstrip('-') for w in option.split()[:2])
            yield Case(tool, args, option, names)
    for tool, command in COMMANDS.items():
        args = [*command, '--no-such-option']
        yield Case(tool, args, 'unknown option', ('--no-such-option',))
        if tool not in ('paper_tables.py', 'smoke.py', 'quickstart.py'):
            yield Case(tool, [], 'no arguments', ('required',))
    for backbone in ('resnet50', 'EViT', ''):
        args = replaced('swap_backbone.py', 'evit_s_k07', backbone)
        about = f'backbone {backbone!r}'
        names = (repr(backbone), 'clustr_s')
        yield Case('swap_backbone.py', args, about, names)
    for base in ('mmseg::no.py', 'timm::a.py', 'mmdet::', '::'):
        args = replaced('swap_backbone.py', TRAIN[0], base)
        yield Case('swap_backbone.py', args, f'base {base}', (base,))
    args = [*COMMANDS['swap_backbone.py'], '--dry-run']
    names = ('--dry-run', '--out')
    advice = 'not allowed with'
    about = 'a dry run and a result'
    yield Case('swap_backbone.py', args, about, names, advice=advice)
    args = [*COMMANDS['swap_backbone.py'][:2], '--dry-run']
    yield Case('swap_backbone.py', args, 'dry run', legal=True)
    args = replaced('publish_model.py', 'given.pth', 'given.bin')
    yield Case('publish_model.py', args, 'result of no kind', ('given.bin',))
    kinds = ['teapots', '']
    for kind in kinds:
        names = ('kind', repr(kind))
        yield Case('benchmark.py', [kind], f'kind {kind!r}', names)
    args = [*COMMANDS['visualize_tokens.py'], '--point', '1']
    yield Case('visualize_tokens.py', args, '--point 1', ('--point', '2'))


# Options of configs.

# An option, and what is to be said of it.
CFG_OPTIONS = {
    'model.backbone.keep': ('model.backbone.keep', 'KEY=VALUE'),
    'model.backbone.keep=[1,2': ('model.backbone.keep', '[1,2'),
    'modle.backbone.keep=0.5': ('modle', 'model'),
    'model.bakcbone.keep=0.5': ('bakcbone', 'backbone'),
    'model.backbone.kepe=0.5': ('kepe', 'EViT', 'keep'),
    'model.backbone.type=EVit': ('EVit',),
    'model.backbone.arch=smal': ('smal', 'deit-small'),
    'model.backbone.type=1': ('type',),
    'model.backbone=EViT': ('model.backbone=EViT', 'dict'),
    'model.head.num_classes=-1': ('num_classes', '-1'),
    'model.type=ImageClasifier': ('ImageClasifier',),
    'model.backbone.keep.x=1': ('model.backbone.keep.x=1', 'keep'),
    'default_scope=mmcls': ('default_scope=mmcls',),
}
TRAIN_OPTIONS = {
    'optim_wrapper.optimizer.type=Adamw': ('Adamw', 'AdamW'),
    'optim_wrapper.optimizer.lrr=1': ('lrr', 'lr'),
    'optim_wrapper.type=OptimWraper': ('OptimWraper',),
    'param_scheduler.99.begin=1': ('param_scheduler.99.begin=1', '99'),
    'param_scheduler.0.typo=1': ('typo', 'start_factor'),
    'train_cfg.max_epoch=1': ('max_epoch', 'max_epochs'),
    'train_dataloader.batchsize=1': ('batchsize', 'batch_size'),
    'train_dataloader.batch_size=0': ('batch_size', '0'),
    'train_dataloader.batch_size=x': ('batch_size', 'x'),
    'train_dataloader.num_workers=-1': ('num_workers',),
    'train_dataloader.sampler.type=Smapler': ('Smapler',),
    'train_dataloader.dataset.type=ImageNett': ('ImageNett',),
    'train_dataloader.dataset.typo=1': ('typo', 'data_prefix'),
    'train_dataloader.dataset.pipeline.0.type=Load': ('Load',),
    'default_hooks.checkpoint.type=Checkpoint': ('Checkpoint',),
    'default_hooks.checkpoint.intervall=1': ('intervall', 'interval'),
    'default_hooks.bad_loss.patience=0': ('patience', '0'),
    'visualizer.type=Visualiser': ('Visualiser',),
    'load_form=x.pth': ('load_form', 'load_from'),
}
# Of these a toolbox or torch says what is wrong, in its own words.
THEIR_OPTIONS = [
    *('model.head.num_classes=x', 'optim_wrapper.optimizer.lr=-1'),
    *('optim_wrapper.optimizer.lr=x', 'train_cfg.max_epochs=x'),
    'train_dataloader.dataset.pipeline.1.scale=x',
    *('randomness.seed=x', 'env_cfg.mp_cfg.mp_start_method=spoon'),
]
TAKES_OPTIONS = (
    *('train.py', 'test.py', 'get_flops.py', 'benchmark.py'),
    *('export_onnx.py', 'visualize_tokens.py'),
)


def wrong_cfg_options() -> Iterator[Case]:
    for tool, (option, names) in product(TAKES_OPTIONS, CFG_OPTIONS.items()):
        args = [*COMMANDS[tool], '--cfg-options', option]
        yield Case(tool, args, option, names)
    for option, names in TRAIN_OPTIONS.items():
        args = [*TRAIN, '--cfg-options', option]
        yield Case('train.py', args, option, names)
    for option in THEIR_OPTIONS:
        args = [*TRAIN, '--cfg-options', option]
        yield Case('train.py', args, option, (option,), advice=PLACE)


# Options of the backbones.

WRONG_COMMON = {
    'arch': ['tinny', '3', '[1,2]'],
    'in_channels': ['0', 'x'],
    'out_indices': ['99', 'x', '-99', '[0,99]', '1.5'],
    'drop_path_rate': ['2', 'x', '-1'],
    'with_cp': ['maybe'],
    'frozen_stages': ['99', 'x'],
    'norm_cfg': ['LN'],
    'init_cfg': ['Pretrained'],
}
WRONG_VIT = {
    'img_size': ['0', '-5', 'x', '[1,2,3]'],
    'patch_size': ['-1', 'x'],
    'out_type': ['map', '3'],
    'drop_rate': ['2', 'x'],
    'attn_drop_rate': ['-1'],
    'qk_norm': ['cosine'],
    'qk_alpha': ['x', '-1', '5'],
    'interpolate_mode': ['cubic'],
    'with_cls_token': ['x'],
    'layer_scale_init_value': ['x'],
    'patch_cfg': ['x'],
}
WRONG_KEEP = ['2', '-0.1', 'abc', '[0.7,x]', '[0.7]', '[]']
WRONG = {
    'ThinViT': {},
    'HVT': {
        'num_stages': ['99', '-1', 'x'],
        'op': ['median'],
        'dims': ['3'],
        'reduce_at': ['[99]', 'x'],
    },
    'EViT': {
        'keep': WRONG_KEEP,
        'reduce_at': ['[99]', 'x', '3'],
        'fuse': ['x'],
    },
    # A list may have any length, but for four there are no usual places.
    'DynamicViT': {
        'keep': [*WRONG_KEEP[:4], '[0.9,0.8,0.7,0.6]', '[0.5,0.6]', '[]'],
        'reduce_at': ['[99]', 'x'],
    },
    'LVViT': {'stem_channels': ['-1', 'x']},
    'DynamicLVViT': {'keep': WRONG_KEEP[:4]},
    'TokenPoolingDeiT': {
        'keep': ['99', '-1', 'abc', '[1,2]', '0.5'],
        'method': ['kmean', '3'],
        'init': ['first'],
        'iters': ['-1', 'x'],
        'weighted': ['x'],
        'reduce_at': ['x'],
    },
    'ToMe': {
        'merge': ['-1', 'abc', '[1]', '0.5'],
        'schedule': ['linear'],
        'carry': ['x'],
    },
    'ClusTR': {
        'window': ['0', 'x', '-3'],
        'reuse': ['x'],
        'assign': ['farthest'],
        'attention': ['full'],
        'reduction': ['3', '[1,2]', '[0,1,1,1]', 'x'],
        'k': ['0', 'x'],
        'share': ['2', '-1', 'x'],
        'num_keys': ['0', 'x'],
    },
}
GENERIC = ('ThinViT', 'ClusTR')  # the others inherit what is common


def wrong_backbones() -> Iterator[Case]:
    for backbone, own in WRONG.items():
        options = dict(own, depht=['3'])
        if backbone in GENERIC:
            options |= WRONG_COMMON
        if backbone == 'ThinViT':
            options |= WRONG_VIT
        for name, values in options.items():
            for value in values:
                option = f'model.backbone.{name}={value}'
                args = ['bad.py', '--shape', '64', '--cfg-options', option]
                yield Case(
                    'get_flops.py',
                    args,
                    f'{backbone} {option}',
                    (name,),
                    writes('bad.py', SHAPE.format(type=backbone)),
                )
