"""ImageFolder: a folder for each class, as ImageNet is often stored."""

from .layout import Layout, Picture
from .scenes import Scene


class ImageFolder(Layout):
    """`train/<class>/*.jpg` and `val/<class>/*.jpg`."""

    @property
    def least(self) -> int:
        # Readers number the folders that they find: none may be missing.
        return len(self.classes)

    def paths(self, picture: Picture) -> list[str]:
        name = picture.choose(self.classes)
        return [f'{picture.split}/{name}/shapes_{picture.index:06d}.jpg']

    def encode(self, scene: Scene, picture: Picture) -> list[bytes]:
        return [scene.jpeg()]
