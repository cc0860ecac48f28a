"""What each block of a backbone did with the tokens of an image."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from clustr_mm.analysis.cost import Cost, count_macs
from clustr_mm.backbones.backbone import Backbone
from clustr_mm.backbones.clustr import ClusTR
from clustr_mm.backbones.vit import ThinViT
from clustr_mm.tokens.trail import Trail
from .follow import clusters_by_block


class Partition(NamedTuple):
    """Which token stands for which patch.

    Patches with one number share a token. Numbers from ``num_numbered`` on
    are of tokens that have left.
    """

    labels: Tensor  # [h, w]
    num_tokens: int
    num_numbered: int


class BlockRecord(NamedTuple):
    """A block: its multiply-accumulates, and the tokens behind it.

    ClusTR attends to several partitions at once, one a scale; none stands
    for all tokens.
    """

    title: str
    stride: int  # pixels a side of a patch
    grid: tuple[int, int]  # height and width in patches
    macs: int
    scales: list[Partition]


@torch.no_grad()
def record_blocks(
    backbone: Backbone, img: Tensor
) -> tuple[list[BlockRecord], int]:
    """Run a backbone in eval mode on ``img`` [1, 3, H, W].

    Returns:
        tuple[list[BlockRecord], int]: Its blocks, and the
        multiply-accumulates of the whole.
    """
    cost = count_macs(backbone, img)
    record = _record_pyramid if backbone.is_pyramid else _record_vit
    return list(record(backbone, img, cost)), cost.macs


def _record_vit(
    backbone: ThinViT, img: Tensor, cost: Cost
) -> Iterator[BlockRecord]:
    macs = [
        cost.part(f'blocks.{i}').total() for i in range(backbone.num_layers)
    ]
    for i, reducer in enumerate(backbone.reducers):
        macs[reducer.block] += cost.part(f'reducers.{i}').total()
    found = []

    def note(i: int, x: Tensor, trail: Trail) -> None:
        found.append(_partition(x.shape[1] - backbone.num_extra_tokens, trail))

    _, trail = backbone.run(img, track=True, after_block=note)
    stride = backbone.patch_embed.patch_size
    for i, partition in enumerate(found):
        title = f'block {i + 1}'
        yield BlockRecord(title, stride, trail.grid, macs[i], [partition])


def _partition(num_tokens: int, trail: Trail) -> Partition:
    labels = trail.owners(1)[0].view(trail.grid)
    return Partition(labels, num_tokens, num_tokens)


def _record_pyramid(
    backbone: ClusTR, img: Tensor, cost: Cost
) -> Iterator[BlockRecord]:
    for i, stage in enumerate(clusters_by_block(backbone, img)):
        for j, (grid, scales) in enumerate(stage):
            yield BlockRecord(
                f'stage {i + 1}, block {j + 1}',
                4 * 2**i,
                grid,
                cost.part(f'stages.{i}.{j}').total(),
                [
                    Partition(
                        clusters.labels[0].view(grid),
                        clusters.num_existing(0),
                        clusters.num_clusters,
                    )
                    for clusters in scales
                    if clusters is not None
                ],
            )
