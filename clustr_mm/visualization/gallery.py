"""Pictures of the tokens of all images of a folder, and a page of them."""

import html
import sys
from pathlib import Path
from urllib.parse import quote

import cv2
import mmcv
import numpy as np
from mmengine import track_iter_progress
from mmengine.config import Config
from mmengine.visualization import Visualizer
from torch import nn

from clustr_mm.analysis.models import usual_size
from clustr_mm.backbones.vit import ThinViT
from clustr_mm.errors import UserError
from clustr_mm.outputs import make_folder
from .follow import find_backbone
from .picture import draw_tokens

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm')


def find_images(path: str) -> list[Path]:
    """The image, or all images in a folder and those in it."""
    root = Path(path)
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise UserError(f'there is no image or folder {path}')
    found = sorted(p for p in root.rglob('*') if p.suffix.lower() in SUFFIXES)
    if not found:
        raise UserError(
            f'there are no images in {path}: no file ends with '
            f'{", ".join(SUFFIXES)}'
        )
    return found


def read_image(path: Path) -> np.ndarray | None:
    """An image in BGR, or None if it is none."""
    try:
        return mmcv.imread(path, 'color')
    except (cv2.error, OSError):
        return None


def seen_size(cfg: Config, model: nn.Module) -> tuple[int, int]:
    """Height and width of the images that a model is made for."""
    backbone = find_backbone(model)
    if cfg.get('default_scope') == 'mmpretrain' and isinstance(
        backbone, ThinViT
    ):
        # In dense tasks, the grid may be that of the pre-training.
        side = backbone.patch_embed.patch_size
        return backbone.grid[0] * side, backbone.grid[1] * side
    return usual_size(cfg)


def scaled_size(
    size: tuple[int, int], usual: tuple[int, int], short: int | None
) -> tuple[int, int]:
    """Height and width to see an image at, in its proportions.

    Args:
        size (tuple[int, int]): Its height and width.
        usual (tuple[int, int]): Those that a model is made for, whose area
            it gets.
        short (int, optional): Shorter side, instead; 0 for as it is.
    """
    if short == 0:
        return size
    if short:
        factor = short / min(size)
    else:
        factor = (usual[0] * usual[1] / (size[0] * size[1])) ** 0.5
    return tuple(max(round(n * factor), 1) for n in size)


class Gallery:
    """Draws images one by one; what is done stays, whatever happens next.

    Args:
        model (nn.Module): The model, in eval mode.
        out (str): Folder for the pictures and ``index.html``.
        about (str): What the model is: config and weights.
        usual (tuple[int, int]): Height and width that it is made for.
        short (int, optional): See :func:`scaled_size`.
        options: More arguments of :func:`draw_tokens`.
    """

    def __init__(
        self,
        model: nn.Module,
        out: str,
        about: str,
        usual: tuple[int, int],
        short: int | None = None,
        **options,
    ):
        self.model, self.out, self.about = model, Path(out), about
        self.usual, self.short, self.options = usual, short, options
        self.pictures: list[str] = []
        make_folder(out)
        backend = dict(
            type='LocalVisBackend', save_dir=str(self.out), img_save_dir='.'
        )
        self.visualizer = Visualizer(vis_backends=[backend])

    def add_all(self, paths: list[Path]) -> None:
        """Draw all images, then the page; also if it is interrupted."""
        unreadable = []
        try:
            for path in track_iter_progress(paths, file=sys.stderr):
                image = read_image(path)
                if image is None:
                    unreadable.append(str(path))
                else:
                    self.add(path, image)
        finally:
            if self.pictures:
                self.write_page(len(paths))
        if unreadable:
            raise UserError(
                f'drew {len(self.pictures)} of {len(paths)} images. No '
                f'images that can be read: {", ".join(unreadable)}. '
                'Take others.'
            )

    def add(self, path: Path, photo: np.ndarray) -> None:
        """Draw an image."""
        height, width = scaled_size(photo.shape[:2], self.usual, self.short)
        image = mmcv.imresize(photo, (width, height))
        heading = [f'{path.name}, seen at {height} x {width}', self.about]
        try:
            sheet, _ = draw_tokens(
                self.model, image, heading, photo, **self.options
            )
        except ValueError as error:
            raise UserError(
                f'this model takes no image of {height} x {width}, as '
                f'{path} is seen: {error}'
            ) from error
        # Images of one name may lie in several folders.
        name = f'{len(self.pictures):04d}_{path.stem}'
        self.visualizer.add_image(name, sheet)
        file = f'{name}_0.png'  # as the backend calls it
        if not (self.out / file).is_file():
            raise UserError(f'cannot write {self.out / file}')
        self.pictures.append(file)

    def write_page(self, number: int) -> None:
        """The page that shows all pictures drawn so far."""
        figures = '\n'.join(
            f'<p><a href="{quote(p)}"><img src="{quote(p)}" loading="lazy" '
            f'alt="{html.escape(p)}"></a></p>'
            for p in self.pictures
        )
        page = PAGE.format(
            about=html.escape(self.about),
            done=len(self.pictures),
            number=number,
            figures=figures,
        )
        (self.out / 'index.html').write_text(page, encoding='utf-8')


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Tokens</title>
<style>
body {{ font-family: sans-serif; margin: 2em; background: #f4f4f4; }}
img {{ max-width: 100%; box-shadow: 0 1px 4px #999; }}
</style>
</head>
<body>
<h1>What happened to the tokens</h1>
<p>{about}. {done} of {number} images.</p>
{figures}
</body>
</html>
"""
