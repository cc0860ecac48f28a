"""ADE20K's folders: a picture and a label map for each scene."""

import cv2

from .layout import Layout, Picture
from .scenes import Scene

FOLDERS = {'train': 'training', 'val': 'validation'}


class ADE20K(Layout):
    """`images/training/*.jpg`, `annotations/training/*.png`, and the same
    under `validation`; label 0 is "no class", label 1 the first class."""

    def paths(self, picture: Picture) -> list[str]:
        folder, name = FOLDERS[picture.split], f'shapes_{picture.index:06d}'
        return [
            f'images/{folder}/{name}.jpg',
            f'annotations/{folder}/{name}.png',
        ]

    def encode(self, scene: Scene, picture: Picture) -> list[bytes]:
        labels = scene.labels(self.classes)
        return [scene.jpeg(), cv2.imencode('.png', labels)[1].tobytes()]
