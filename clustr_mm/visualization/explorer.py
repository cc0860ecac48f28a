"""A page to explore what models did with the tokens of images.

It is one file that needs no server and no network. Its parts lie in `page/`;
each image is a block of JSON in it, which the script reads when it is chosen.
"""

import base64
import html
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import cv2
import mmcv
import numpy as np
import torch
from torch import Tensor, nn

from .blocks import BlockRecord, record_blocks
from .follow import find_backbone
from .picture import preprocess

PARTS = Path(__file__).parent / 'page'
PHOTO_SIDE = 640  # longer side of the photograph in the page


class Subject(NamedTuple):
    """A model to look into, in eval mode, and what to call it."""

    model: nn.Module
    config: str
    weights: str
    usual: tuple[int, int]  # height and width that it is made for

    @property
    def about(self) -> str:
        return f'{self.config}, {self.weights} weights'


class Picture:
    """An image in the page, with what each model did with its tokens.

    Args:
        name (str): What to call it.
        photo (np.ndarray): It in BGR, of any resolution.
    """

    def __init__(self, name: str, photo: np.ndarray):
        self.name = name
        self.photo = _photo_address(photo)
        self.maps: dict[str, int] = {}
        self.models: list[dict] = []

    def add(
        self, subject: Subject, image: np.ndarray, sheet: str | None = None
    ) -> None:
        """Record what a model does with ``image``, as it sees the photo.

        Args:
            subject (Subject): The model.
            image (np.ndarray): [H, W, 3] in BGR, from 0 to 255.
            sheet (str, optional): Address of the sheet to link to.
        """
        backbone = find_backbone(subject.model)
        blocks, macs = record_blocks(
            backbone, preprocess(subject.model, image)
        )
        self.models.append(
            dict(
                config=subject.config,
                weights=subject.weights,
                backbone=type(backbone).__name__,
                sheet=sheet,
                seen=image.shape[:2],
                macs=macs,
                # Whether a block takes up again all tokens there are.
                anew=backbone.is_pyramid,
                blocks=[self._block(block) for block in blocks],
            )
        )

    def _block(self, block: BlockRecord) -> dict:
        scales = [
            dict(
                map=self._map(scale.labels),
                tokens=scale.num_tokens,
                numbered=scale.num_numbered,
            )
            for scale in block.scales
        ]
        return dict(block._asdict(), scales=scales)

    def _map(self, labels: Tensor) -> int:
        """The place of these labels among the maps; equal ones share it."""
        integers = labels.to('cpu', torch.int32).numpy().astype('<u4')
        packed = base64.b64encode(zlib.compress(integers.tobytes(), 9))
        return self.maps.setdefault(packed.decode(), len(self.maps))

    def script(self) -> str:
        """The element of the page that holds it all."""
        data = dict(
            name=self.name,
            photo=self.photo,
            models=self.models,
            maps=list(self.maps),
        )
        # No text can end the element.
        text = json.dumps(data, separators=(',', ':')).replace('<', r'\u003c')
        name = html.escape(self.name)
        return (
            '<script type="application/json" class="picture" '
            f'data-name="{name}">{text}</script>'
        )


def _photo_address(photo: np.ndarray) -> str:
    """A photo as an address that holds it."""
    shrink = min(PHOTO_SIDE / max(photo.shape[:2]), 1)
    height, width = (max(round(n * shrink), 1) for n in photo.shape[:2])
    photo = mmcv.imresize(photo, (width, height), interpolation='area')
    data = cv2.imencode('.jpg', photo, [cv2.IMWRITE_JPEG_QUALITY, 88])[1]
    return f'data:image/jpeg;base64,{base64.b64encode(data).decode()}'


def build_page(scripts: Iterable[str], done: str = '') -> str:
    """The page of these pictures.

    Args:
        scripts (Iterable[str]): Of each picture what
            :meth:`Picture.script` gives.
        done (str): A line at the end, such as how many images there were.
    """
    page = _part('html')
    fillings = {
        '/* STYLE */': _part('css'),
        '/* SCRIPT */': _part('js'),
        '/* DONE */': html.escape(done),
        # The last one, as it may hold any text.
        '<!-- PICTURES -->': '\n'.join(scripts),
    }
    for place, text in fillings.items():
        page = page.replace(place, text)
    return page


def _part(kind: str) -> str:
    return (PARTS / f'explorer.{kind}').read_text(encoding='utf-8')
