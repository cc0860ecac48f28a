"""A contact sheet: columns of pictures under a heading."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.font_manager import findfont
from PIL import Image, ImageDraw, ImageFont

GAP = 12
FONT_SIZE = 15
LINE = 22


class Column(NamedTuple):
    """Pictures of one size, one below the other."""

    title: str
    pictures: list[np.ndarray]


def contact_sheet(
    heading: Sequence[str], columns: Sequence[Column], most: int = 6
) -> np.ndarray:
    """Draw columns beside each other, at most so many in a row of them.

    Args:
        heading (Sequence[str]): Lines of text at the top.
        columns (Sequence[Column]): The pictures, all of one size.
        most (int): Columns in a row.
    """
    height, width = columns[0].pictures[0].shape[:2]
    # Narrow pictures still leave room for their titles.
    cell = max(width, 250) + GAP
    # As few rows as there can be, of like lengths.
    length = math.ceil(len(columns) / math.ceil(len(columns) / most))
    rows = [columns[i : i + length] for i in range(0, len(columns), length)]
    depth = max(len(column.pictures) for column in columns)
    row_height = LINE + depth * (height + GAP) + GAP
    top = GAP + len(heading) * LINE + GAP
    size = (
        max(GAP + length * cell, 640),
        top + len(rows) * row_height,
    )
    sheet = Image.new('RGB', size, 'white')
    pen = ImageDraw.Draw(sheet)
    for i, line in enumerate(heading):
        place = (GAP, GAP + i * LINE)
        _write(pen, place, line, size[0] - 2 * GAP, bold=not i)
    for r, row in enumerate(rows):
        for c, column in enumerate(row):
            x, y = GAP + c * cell, top + r * row_height
            _write(pen, (x, y), column.title, cell - GAP)
            for i, picture in enumerate(column.pictures):
                place = (x, y + LINE + i * (height + GAP))
                sheet.paste(Image.fromarray(picture), place)
    return np.array(sheet)


def _write(
    pen: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    width: int,
    bold: bool = False,
) -> None:
    """Write a line, shortened to a width."""
    name = 'DejaVu Sans:bold' if bold else 'DejaVu Sans'
    font = ImageFont.truetype(findfont(name), FONT_SIZE)
    short = text
    while short and pen.textlength(short, font) > width:
        short = short.removesuffix('…')[:-1] + '…' if len(short) > 1 else ''
    pen.text(place, short, 'black', font)
