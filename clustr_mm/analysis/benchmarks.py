"""What `tools/benchmark.py` measures: who is compared with whom."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import torch
from mmengine.config import Config
from torch import Tensor, nn

from clustr_mm.backbones.clustr import Clustering
from clustr_mm.registry import MODELS
from clustr_mm.tokens.density_peaks import density_peaks
from clustr_mm.tokens.kmeans import kmedoids
from clustr_mm.toolboxes import TOOLBOXES
from .cost import count_macs
from .measure import Candidate, Result, Setting, measure, prepared
from .models import build_model, example_inputs
from .references import (
    looped_kmedoids,
    straightforward,
    textbook_density_peaks,
)
from .speed import resident_memory, time_share

# Clustering.

DENSITY_PEAKS = (
    # Tokens [B, N, C], numbers of clusters; a 224 x 224 image's stages.
    ((8, 3136, 64), (49, 196)),
    ((8, 784, 128), (49, 196)),
    ((8, 196, 256), (49,)),
)
# The first stage of a 1333 x 800 image: height and width in tokens.
LARGE_GRID = (200, 334)
# A map of tokens, [B, C, H, W], and a number of clusters.
KMEDOIDS = ((8, 384, 14, 14), 140)
WINDOW = 56


def clustering(
    setting: Setting,
    shapes: Sequence = DENSITY_PEAKS,
    large_grid: tuple[int, int] | None = LARGE_GRID,
    medoids: tuple[Sequence[int], int] = KMEDOIDS,
) -> Iterator[Result]:
    """Our clustering against what the equations say word by word."""
    for shape, numbers in shapes:
        x = torch.randn(shape, device=setting.device)
        yield _density_peaks(x, numbers, setting)
    if large_grid is not None:
        yield _large_density_peaks(large_grid, setting)
    yield _kmedoids(*medoids, setting)


def _density_peaks(
    x: Tensor, numbers: Sequence[int], setting: Setting
) -> Result:
    def textbook():
        return textbook_density_peaks(x, numbers)

    def ours():
        return density_peaks(x, numbers)

    agreement = [
        (clusters.labels == labels).float().mean().item()
        for clusters, labels in zip(ours(), textbook())
    ]
    # A tie that rounding decides may move a whole cluster.
    _make_sure(min(agreement) > 0.95, 'density peaks', agreement)
    result = measure(
        f'density peaks, {list(x.shape)} to {_join(numbers)} clusters',
        {'textbook': _counted(textbook), 'ours': _counted(ours)},
        setting,
        len(x),
    )
    result.notes.append(f'Equal labels: {min(agreement):.2%}')
    if not result.interrupted:
        textbook, ours = (found['memory'] for found in result.data)
        result.notes.append(f'Memory: 1/{textbook / ours:.1f}')
    return result


def _large_density_peaks(grid: tuple[int, int], setting: Setting) -> Result:
    num_tokens = math.prod(grid)
    x = torch.randn(1, num_tokens, 64, device=setting.device)
    numbers = [math.ceil(num_tokens / r) for r in (64, 16)]
    result = measure(
        f'density peaks, {list(x.shape)} to {_join(numbers)} clusters',
        {
            'exact': Candidate(lambda: density_peaks(x, numbers)),
            f'window {WINDOW}': Candidate(
                lambda: density_peaks(x, numbers, grid=grid, window=WINDOW)
            ),
        },
        replace(setting, rounds=min(setting.rounds, 3)),
    )
    matrix = 4 * num_tokens**2 / 2**30
    result.notes.append(
        f'The textbook version would need {matrix:.1f} GB a matrix'
    )
    return result


def _kmedoids(
    shape: Sequence[int], num_clusters: int, setting: Setting
) -> Result:
    x = setting.picture(*shape).flatten(2).mT.contiguous()
    weight = torch.rand(x.shape[:2], device=setting.device)
    init = weight.topk(num_clusters).indices

    def loop():
        return looped_kmedoids(x, init, weight)

    def ours():
        return kmedoids(x, init, weight)

    equal = [(a == b).float().mean().item() for a, b in zip(ours(), loop())]
    _make_sure(min(equal) > 0.95, 'K-Medoids', equal)
    result = measure(
        f'K-Medoids, {list(x.shape)} to {num_clusters} clusters, 5 iterations',
        {'loop over clusters': _counted(loop), 'ours': _counted(ours)},
        setting,
        len(x),
    )
    result.notes.append(f'Equal labels and medoids: {min(equal):.2%}')
    return result


def _counted(call: Callable) -> Candidate:
    return Candidate(call, count_macs(call).macs)


def _make_sure(holds: bool, what: str, found) -> None:
    if not holds:
        raise AssertionError(
            f'{what}: ours and the reference do not agree, {found}'
        )


def _join(numbers: Sequence[int]) -> str:
    return ' and '.join(map(str, numbers))


# Backbones.

PLAIN = {
    'DeiT-S, ours': dict(type='ThinViT', arch='deit-small'),
    'HVT-S-1': dict(type='HVT', arch='s-1'),
    'EViT-S/0.7': dict(type='EViT', keep=0.7),
    'DynamicViT-S/0.7': dict(type='DynamicViT', keep=0.7),
    'Token Pooling, level 3': dict(type='TokenPoolingDeiT', keep=3),
}
TOME = dict(type='ToMe', arch='deit-small')
PYRAMIDS = {
    'ClusTR-S': dict(type='ClusTR', arch='small'),
    'ClusTR-S, reuse': dict(type='ClusTR', arch='small', reuse=True),
}
# With the dials of the detection configs.
DETECTION_PYRAMIDS = {
    'ClusTR-S, window, reuse': dict(
        type='ClusTR', arch='small', window=WINDOW, reuse=True
    ),
    'ClusTR-S, window': dict(type='ClusTR', arch='small', window=WINDOW),
}
DEIT = dict(type='mmpretrain.VisionTransformer', arch='deit-small')
SWIN = dict(
    type='mmseg.SwinTransformer',
    embed_dims=96,
    depths=(2, 2, 6, 2),
    num_heads=(3, 6, 12, 24),
    window_size=7,
)
PVT = dict(
    type='mmdet.PyramidVisionTransformerV2',
    embed_dims=64,
    num_layers=[3, 4, 6, 3],
)
DETECTION_SIZE = (800, 1344)


def backbones(
    setting: Setting, batches: Sequence[int] = (8, 1), size: int = 224
) -> Iterator[Result]:
    """Our backbones against those of the toolboxes and against
    straightforward versions of themselves."""
    for batch in batches:
        yield plain_vits(setting, batch, size)
        yield feature_maps(setting, batch, size)
        yield pyramids(setting, batch, (size, size), PYRAMIDS)
    yield pyramids(setting, 1, DETECTION_SIZE, DETECTION_PYRAMIDS)


def plain_vits(setting: Setting, batch: int, size: int) -> Result:
    """Each plain ViT, the dense one of mmpretrain, and the straightforward
    version of each."""
    img = setting.picture(batch, 3, size, size)
    dense = build_backbone(DEIT, setting, img_size=size)
    candidates = _variants('DeiT-S, mmpretrain', dense, img, setting)
    for name, settings in PLAIN.items():
        model = build_backbone(settings, setting, img_size=size)
        plain = straightforward(model)
        _check_same(name, model, plain, img[:1])
        rival = f'{name}, straightforward'
        candidates[rival] = Candidate(
            partial(plain, img), count_macs(plain, img[:1]).macs
        )
        candidates.update(_variants(name, model, img, setting, rival))
    title = f'plain ViTs, {batch} x {size} x {size}, {setting.dtype}'
    return measure(title, candidates, setting, batch)


def feature_maps(setting: Setting, batch: int, size: int) -> Result:
    """What a map at full resolution costs over the class token."""
    img = setting.picture(batch, 3, size, size)
    candidates = {}
    for name in 'EViT-S/0.7', 'DynamicViT-S/0.7', 'Token Pooling, level 3':
        for out_type in 'cls_token', 'featmap':
            model = build_backbone(
                PLAIN[name], setting, img_size=size, out_type=out_type
            )
            candidates[f'{name}, {out_type}'] = Candidate(
                partial(model, img),
                count_macs(model, img[:1]).macs,
                f'{name}, cls_token' if out_type == 'featmap' else None,
            )
    title = f'feature maps, {batch} x {size} x {size}, {setting.dtype}'
    return measure(title, candidates, setting, batch)


def pyramids(
    setting: Setting,
    batch: int,
    size: tuple[int, int],
    ours: dict[str, dict],
) -> Result:
    """ClusTR against Swin and PVT, and the share of time that it clusters."""
    img = setting.picture(batch, 3, *size)
    candidates, models = {}, {}
    for name, settings in {
        'Swin-T, mmseg': SWIN,
        'PVTv2-b2, mmdet': PVT,
        **ours,
    }.items():
        models[name] = build_backbone(settings, setting)
        candidates.update(_variants(name, models[name], img, setting))
    title = f'pyramids, {batch} x {size[0]} x {size[1]}, {setting.dtype}'
    result = measure(title, candidates, setting, batch)
    for found in result.data:
        if found['name'] not in ours or result.interrupted:
            continue
        call = prepared(setting, candidates[found['name']].call)
        parts = models[found['name']].modules()
        share = time_share(
            call, (m for m in parts if isinstance(m, Clustering)), rounds=3
        )
        found['clustering_share'] = share
        resident = resident_memory(call)
        note = f'{found["name"]}: {share.median:.1%} of the time is clustering'
        if resident is not None:
            found['resident_memory'] = resident.extra
            note += f', and {resident.extra / 2**30:.2f} GB become resident'
        result.notes.append(note)
    return result


def training(
    setting: Setting, batches: Sequence[int] = (8,), size: int = 224
) -> Iterator[Result]:
    """An iteration of training: forward, backward, a step of AdamW."""
    setting = replace(setting, training=True)
    for batch in batches:
        img = setting.picture(batch, 3, size, size)
        candidates = {}
        for name, model in _everybody(setting, size):
            macs = count_macs(model, img[:1]).macs
            candidates[name] = Candidate(training_step(model, img), macs)
        title = f'training, {batch} x {size} x {size}, {setting.dtype}'
        yield measure(title, candidates, setting, batch)


def training_step(model: nn.Module, img: Tensor) -> Callable[[], None]:
    """What trains a model by one more step, for whatever loss."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        sum(out.float().square().mean() for out in model(img)).backward()
        optimizer.step()
        # Else the next step's memory would be less by what it frees.
        optimizer.zero_grad()

    return step


def precision(
    setting: Setting, batches: Sequence[int] = (8, 1), size: int = 224
) -> Iterator[Result]:
    """Each backbone in ``setting.dtype``, by autocast, and in float32."""
    full = replace(setting, dtype='float32')
    for batch in batches:
        img = setting.picture(batch, 3, size, size)
        candidates, notes = {}, []
        for name, model in _everybody(setting, size):
            predict = partial(model, img)
            low = prepared(setting, predict)
            candidates[name] = Candidate(
                predict, count_macs(model, img[:1]).macs
            )
            candidates[f'{name}, {setting.dtype}'] = Candidate(low, rival=name)
            with full.running():
                error = _distance(predict()[-1], low()[-1])
            notes.append(f'{name}: outputs differ by {error:.2%}')
        title = f'{setting.dtype} against float32, {batch} x {size} x {size}'
        result = measure(title, candidates, full, batch)
        result.notes += notes
        yield result


def _distance(expected: Tensor, found: Tensor) -> float:
    """How far tensors are from each other, as a share of their length."""
    expected, found = expected.double(), found.double()
    return ((found - expected).norm() / expected.norm()).item()


def _everybody(setting: Setting, size: int) -> Iterator[tuple[str, nn.Module]]:
    """All that is compared, the dense trunk first."""
    for name, settings in {**PLAIN, 'ToMe': TOME}.items():
        yield name, build_backbone(settings, setting, img_size=size)
    pyramids = {**PYRAMIDS, 'Swin-T, mmseg': SWIN, 'PVTv2-b2, mmdet': PVT}
    for name, settings in pyramids.items():
        yield name, build_backbone(settings, setting)


def build_backbone(settings: dict, setting: Setting, **more) -> nn.Module:
    """Build a backbone, of any toolbox, with random weights."""
    toolbox = settings['type'].rpartition('.')[0]
    if toolbox:
        TOOLBOXES[toolbox].require()
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        model = MODELS.build(dict(settings, **more))
    model.eval()  # which not all of them return
    return model.to(setting.device)


def _variants(
    name: str,
    model: nn.Module,
    img: Tensor,
    setting: Setting,
    rival: str | None = None,
) -> dict[str, Candidate]:
    """A model as a candidate, and maybe compiled as another."""
    macs = count_macs(model, img[:1]).macs
    candidates = {name: Candidate(partial(model, img), macs, rival)}
    if setting.compiled:
        compiled = torch.compile(deepcopy(model))
        candidates[f'{name}, compiled'] = Candidate(
            partial(compiled, img), macs, name
        )
    return candidates


@torch.no_grad()
def _check_same(name: str, model: nn.Module, plain: Callable, img: Tensor):
    """Make sure that a reference computes the same."""
    found, expected = model(img)[-1], plain(img)
    error = (found - expected).abs().max().item()
    scale = expected.abs().max().item()
    _make_sure(error < 1e-3 * scale, name, f'{error} of {scale}')


# A config's model.


def config(
    cfg: Config,
    setting: Setting,
    batches: Sequence[int],
    size: tuple[int, int],
) -> Iterator[Result]:
    """Any config's model, as it predicts, post-processing included."""
    model = build_model(cfg).to(setting.device)
    for batch in batches:
        inputs = example_inputs(cfg, batch, size)
        inputs['inputs'] = inputs['inputs'].to(setting.device)
        predict = partial(model, **inputs, mode='predict')
        candidates = {
            'eager': Candidate(predict, count_macs(predict).macs // batch)
        }
        if setting.compiled:
            compiled = torch.compile(deepcopy(model))
            candidates['compiled'] = Candidate(
                partial(compiled, **inputs, mode='predict')
            )
        title = f'{batch} x {size[0]} x {size[1]}, {setting.dtype}'
        yield measure(title, candidates, setting, batch)
