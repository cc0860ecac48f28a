"""What ClusTR's options of clustering change: the labels, and the time."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import cv2
import mmcv
import numpy as np
import torch
from torch import Tensor

from clustr_mm.backbones.clustr import Clustering, ClusTR
from clustr_mm.errors import UserError
from clustr_mm.tokens.density_peaks import density_peaks
from .measure import Candidate, Result, Setting, measure

OPTIONS = {
    'exact': {},
    'nearest': dict(assign='nearest'),
    'reuse': dict(reuse=True),
    'window': dict(window=56),
    'window, reuse': dict(window=56, reuse=True),
}


def adjusted_rand(a: Tensor, b: Tensor) -> float:
    """Agreement of two labellings: 1 if equal, 0 if no better than chance.

    The index of Hubert and Arabie (1985), on pairs of tokens.
    """
    width = int(b.max()) + 1
    table = torch.bincount(a * width + b).double()
    first, second = torch.bincount(a).double(), torch.bincount(b).double()
    together, in_a, in_b = map(_pairs, (table, first, second))
    expected = in_a * in_b / _pairs(first.sum())
    largest = (in_a + in_b) / 2
    if largest == expected:
        return 1.0
    return float((together - expected) / (largest - expected))


def _pairs(counts: Tensor) -> Tensor:
    return (counts * (counts - 1) / 2).sum()


def agreement(
    model: ClusTR, images: Tensor
) -> dict[str, dict[tuple[int, int], float]]:
    """Agreement of each option's labels with the exact ones.

    All are given the same tokens: those of the exact model.

    Returns:
        dict: For each option, by stage and scale, the mean over the stage's
        blocks and the images.
    """
    found: dict = {name: {} for name in OPTIONS}
    calls = _clusterings(model, images)
    stages = sorted({x.shape[1] for x, *_ in calls}, reverse=True)
    firsts: dict[int, dict] = {}
    for x, numbers, grid, exact in calls:
        num_tokens = x.shape[1]
        for name, options in OPTIONS.items():
            options = dict(options)
            reuse = options.pop('reuse', False)
            labelled = density_peaks(x, numbers, grid=grid, **options)
            if reuse:
                kept = firsts.setdefault(num_tokens, {})
                labelled = kept.setdefault(name, labelled)
            for scale, (one, other) in enumerate(
                zip(exact, labelled, strict=True)
            ):
                key = (stages.index(num_tokens), scale)
                found[name].setdefault(key, []).extend(
                    map(adjusted_rand, one.labels, other.labels)
                )
    return {
        name: {key: sum(v) / len(v) for key, v in rows.items()}
        for name, rows in found.items()
    }


@torch.no_grad()
def _clusterings(model: ClusTR, images: Tensor) -> list[tuple]:
    """What the blocks cluster, to how many, on which grid; the outcomes."""
    calls = []

    def record(clustering, args, found):
        calls.append((*args, found))

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, Clustering):
                hooks.enter_context(module.register_forward_hook(record))
        model(images)
    return calls


def compare_options(
    images: Tensor, setting: Setting, arch: str | dict = 'small'
) -> Iterator[Result]:
    """Time the backbone with each option, and compare the labels.

    Args:
        images (Tensor): Images [B, 3, H, W], normalised.
        setting (Setting): How to measure.
        arch (str | dict): Of the backbone.
    """
    torch.manual_seed(0)
    exact = ClusTR(arch).eval().to(setting.device)
    exact.init_weights()
    candidates = {}
    for name, options in OPTIONS.items():
        model = ClusTR(arch, **options).eval().to(setting.device)
        model.load_state_dict(exact.state_dict())
        candidates[name] = Candidate(partial(model, images))
    batch, _, height, width = images.shape
    what = f'{batch} x {height} x {width}'
    yield measure(f'dials, {what}', candidates, setting, batch)

    found = agreement(exact, images)
    keys = list(found['exact'])
    yield Result(
        f'Adjusted Rand index with the exact labels, {what}',
        ['', *(f'stage {i + 1}, scale {j + 1}' for i, j in keys)],
        [[n, *(f'{row[k]:.2f}' for k in keys)] for n, row in found.items()],
        [
            dict(name=n, stage=i + 1, scale=j + 1, index=row[i, j])
            for n, row in found.items()
            for i, j in keys
        ],
    )


def read_images(paths: Sequence[str], size: tuple[int, int]) -> Tensor:
    """Images [B, 3, H, W] of a size, normalised as for ImageNet."""
    mean = np.array([123.675, 116.28, 103.53])
    std = np.array([58.395, 57.12, 57.375])
    images = []
    for path in paths:
        try:
            image = mmcv.imread(path)
        except (OSError, cv2.error):
            image = None
        if image is None:
            raise UserError(
                f'{path} is no image that can be read: give another file'
            )
        image = mmcv.imresize(image, size[::-1])
        image = mmcv.imnormalize(image, mean, std, to_rgb=True)
        images.append(torch.from_numpy(image).permute(2, 0, 1))
    return torch.stack(images)
