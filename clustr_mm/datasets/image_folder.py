"""ImageFolder: a folder for each class, as ImageNet is often stored."""

from .layout import Layout


class ImageFolder(Layout):
    """`train/<class>/*.jpg` and `val/<class>/*.jpg`."""

    @property
    def least(self):
        # Readers number the folders that they find: none may be missing.
        return len(self.classes)

    def paths(self, picture):
        name = picture.choose(self.classes)
        return [f'{picture.split}/{name}/shapes_{picture.index:06d}.jpg']

    def encode(self, scene, picture):
        return [scene.jpeg()]
