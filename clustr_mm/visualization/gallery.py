"""Sheets of the tokens of all images of a folder, and a page to explore."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import cv2
import mmcv
import numpy as np
from mmengine.config import Config
from mmengine.visualization import Visualizer
from torch import nn

from clustr_mm.errors import UserError, missing
from clustr_mm.outputs import make_folder
from clustr_mm.progress import track
from clustr_mm.toolboxes import toolbox_of
from .explorer import Picture, Subject, build_page
from .follow import find_backbone
from .picture import draw_tokens

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm')


def find_images(path: str) -> list[Path]:
    """The image, or all images in a folder and those in it."""
    root = Path(path)
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise missing('image or folder', path)
    found = sorted(p for p in root.rglob('*') if p.suffix.lower() in SUFFIXES)
    if not found:
        raise UserError(
            f'there are no images in {path}: no file ends with '
            f'{", ".join(SUFFIXES)}. Give another folder, or an image.'
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
    toolbox = toolbox_of(cfg)
    if toolbox.is_classifier and not backbone.is_pyramid:
        # In dense tasks, the grid may be that of the pre-training.
        side = backbone.patch_embed.patch_size
        return backbone.grid[0] * side, backbone.grid[1] * side
    return toolbox.image_size(cfg)


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
        subjects (Sequence[Subject]): The models.
        out (str): Folder for the pictures and ``index.html``.
        short (int, optional): See :func:`scaled_size`.
        options: More arguments of :func:`draw_tokens`.
    """

    def __init__(
        self,
        subjects: Sequence[Subject],
        out: str,
        short: int | None = None,
        **options,
    ):
        self.subjects, self.out = subjects, Path(out)
        self.short, self.options = short, options
        self.pictures: list[str] = []  # files of the sheets
        self.scripts: list[str] = []  # of the images in the page
        make_folder(out)
        backend = dict(
            type='LocalVisBackend', save_dir=str(self.out), img_save_dir='.'
        )
        self.visualizer = Visualizer(vis_backends=[backend])

    def add_all(self, paths: list[Path]) -> None:
        """Draw all images, then the page; also if it is interrupted."""
        unreadable = []
        try:
            for path in track(paths, 'drawing'):
                image = read_image(path)
                if image is None:
                    unreadable.append(str(path))
                else:
                    self.add(path, image)
        finally:
            if self.scripts:
                self.write_page(len(paths))
        if unreadable:
            raise UserError(
                f'drew {len(self.scripts)} of {len(paths)} images. No '
                f'images that can be read: {", ".join(unreadable)}. '
                'Take others.'
            )

    def add(self, path: Path, photo: np.ndarray) -> None:
        """Draw an image, as each model sees it."""
        picture = Picture(path.name, photo)
        for i, subject in enumerate(self.subjects):
            size = scaled_size(photo.shape[:2], subject.usual, self.short)
            image = mmcv.imresize(photo, size[::-1])
            try:
                sheet = self._add_sheet(i, path, photo, image)
                picture.add(subject, image, quote(sheet))
            except ValueError as error:
                raise UserError(
                    f'{subject.config} takes no image of {size[0]} x '
                    f'{size[1]}, as {path} is seen: {error}'
                ) from error
        self.scripts.append(picture.script())

    def _add_sheet(
        self, i: int, path: Path, photo: np.ndarray, image: np.ndarray
    ) -> str:
        """Draw a sheet of an image for subject ``i``; returns its file."""
        subject = self.subjects[i]
        height, width = image.shape[:2]
        heading = [f'{path.name}, seen at {height} x {width}', subject.about]
        sheet, _ = draw_tokens(
            subject.model, image, heading, photo, **self.options
        )
        # Images of one name may lie in several folders.
        name = f'{len(self.scripts):04d}_{path.stem}'
        if len(self.subjects) > 1:
            name += f'_{i}_{Path(subject.config).stem}'
        self.visualizer.add_image(name, sheet)
        file = f'{name}_0.png'  # as the backend calls it
        if not (self.out / file).is_file():
            raise UserError(f'cannot write {self.out / file}')
        self.pictures.append(file)
        return file

    def write_page(self, number: int) -> None:
        """The page of all images drawn so far."""
        done = f'{len(self.scripts)} of {number} images.'
        page = build_page(self.scripts, done)
        (self.out / 'index.html').write_text(page, encoding='utf-8')
