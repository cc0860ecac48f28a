"""From a model and an image to a picture of the tokens."""

from collections.abc import Sequence
from typing import NamedTuple

import mmcv
import numpy as np
import torch
from mmengine.structures import BaseDataElement
from torch import Tensor, nn

from .drawing import Canvas, draw
from .follow import Clustered, Pooled, Stage, find_backbone, follow
from .sheet import Column, contact_sheet

LEGENDS = {
    'clusters': (
        'Top: each cluster in a colour of its own. Middle: in the mean '
        'colour of its pixels. Bottom: the one at the cross.'
    ),
    'selection': 'In colour: tokens that stay. Grey: those that left.',
    'fusion': (
        'Untouched: tokens that stay. Tinted: fused tokens, one colour for '
        'each.'
    ),
    'features': (
        'Features at the end of each stage, interpolated to the image. Top: '
        'their three principal components. Bottom: mean over the channels.'
    ),
    'nothing': 'All tokens are kept.',
}


class TokenPicture(NamedTuple):
    """A contact sheet (RGB) and what it shows."""

    sheet: np.ndarray
    stages: list[Stage]


def draw_tokens(
    model: nn.Module,
    image: np.ndarray,
    heading: Sequence[str] = (),
    photo: np.ndarray | None = None,
    side: int = 400,
    point: tuple[float, float] | None = None,
) -> TokenPicture:
    """Draw what a model's backbone does with the tokens of an image.

    The model should be in eval mode: in training, tokens stay.

    Args:
        model (nn.Module): A model of any toolbox with one of our backbones
            in it.
        image (np.ndarray): The image as its data preprocessor takes it:
            [H, W, 3] in BGR, from 0 to 255.
        heading (Sequence[str]): Lines to write on top.
        photo (np.ndarray, optional): The same in another resolution, to be
            drawn upon.
        side (int): Longer side of each picture.
        point (tuple[float, float], optional): Whose cluster is
            highlighted; see :func:`draw`.
    """
    backbone = find_backbone(model)
    stages = follow(backbone, preprocess(model, image))
    rgb = mmcv.bgr2rgb(image if photo is None else photo)
    canvas = Canvas(rgb, image.shape[:2], side)
    columns = [Column('image', [canvas.photo])]
    columns += [
        Column(stage.title, pictures)
        for stage, pictures in zip(stages, draw(stages, canvas, point))
    ]
    lines = [*heading, LEGENDS[_kind(stages)]]
    return TokenPicture(contact_sheet(lines, columns), stages)


@torch.no_grad()
def preprocess(model: nn.Module, image: np.ndarray) -> Tensor:
    """An image as a batch of one, normalised as the config says."""
    img = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)
    # Some write into the sample how they padded its image.
    data = dict(inputs=[img], data_samples=[BaseDataElement()])
    inputs = model.data_preprocessor(data, False)['inputs']
    if not isinstance(inputs, Tensor):
        # A preprocessor that does not make batches.
        inputs = torch.stack(list(inputs))
    return inputs.float()


def _kind(stages: Sequence[Stage]) -> str:
    if not stages:
        return 'nothing'
    if isinstance(stages[-1], Pooled):
        return 'features'
    if any(isinstance(stage, Clustered) for stage in stages):
        return 'clusters'
    return 'fusion' if stages[-1].fused.any() else 'selection'
