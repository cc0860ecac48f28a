"""ADE20K's folders: a picture and a label map for each scene."""

import cv2

FOLDERS = {'train': 'training', 'val': 'validation'}


class ADE20K:
    """`images/training/*.jpg`, `annotations/training/*.png`, and the same
    under `validation`; label 0 is "no class", label 1 the first class."""

    def __init__(self, classes):
        self.classes = classes

    def paths(self, index, split):
        folder, name = FOLDERS[split], f'shapes_{index:06d}'
        return [
            f'images/{folder}/{name}.jpg',
            f'annotations/{folder}/{name}.png',
        ]

    def add(self, scene, index, split):
        """The contents of the files at `paths`."""
        labels = scene.labels(self.classes)
        return [scene.jpeg(), cv2.imencode('.png', labels)[1].tobytes()]

    def summary_paths(self):
        return []

    def summaries(self):
        return []
