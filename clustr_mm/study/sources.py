"""The pictures of the study, as their homes offer them."""

import gzip
import json
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from clustr_mm.errors import UserError

PHOTOGRAPHS = [
    'airplane',
    'automobile',
    'bird',
    'cat',
    'deer',
    'dog',
    'frog',
    'horse',
    'ship',
    'truck',
]
GARMENTS = [
    'shirt',
    'trouser',
    'pullover',
    'dress',
    'coat',
    'sandal',
    'blouse',
    'sneaker',
    'bag',
    'boot',
]
# Where a file of garments does not say which are held out: so many a class.
_HELD_OUT = 1000


@dataclass(frozen=True)
class Pictures:
    """Pictures [N, H, W] or, in RGB, [N, H, W, 3], and their classes [N]."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Aerial:
    """An aerial photograph in BGR with a box [x, y, w, h] for each tree."""

    name: str
    image: np.ndarray
    boxes: np.ndarray


def photographs(folder: Path) -> dict[str, Pictures]:
    """CIFAR-10, split as its authors do: ``cifar10.npz`` with x_train,
    y_train, x_test and y_test, or their ``cifar-10-binary.tar.gz``."""
    packed, archive = folder / 'cifar10.npz', folder / 'cifar-10-binary.tar.gz'
    if packed.is_file():
        arrays = _arrays(packed, ['x_train', 'y_train', 'x_test', 'y_test'])
        return {
            split: Pictures(arrays[f'x_{split}'], arrays[f'y_{split}'])
            for split in ('train', 'test')
        }
    if archive.is_file():
        batches = [f'data_batch_{i}' for i in range(1, 6)]
        return {
            'train': _cifar_records(archive, batches),
            'test': _cifar_records(archive, ['test_batch']),
        }
    raise _missing('CIFAR-10', folder, (packed, archive))


def _cifar_records(archive: Path, names: Iterable[str]) -> Pictures:
    """A byte for the class, then the red, green and blue of 32 x 32."""
    with _readable(archive), tarfile.open(archive) as files:
        data = b''.join(
            files.extractfile(f'cifar-10-batches-bin/{name}.bin').read()
            for name in names
        )
        records = np.frombuffer(data, np.uint8).reshape(-1, 1 + 3 * 32 * 32)
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return Pictures(images, records[:, 0])


def garments(folder: Path) -> dict[str, Pictures]:
    """Fashion-MNIST: ``fashion_mnist.npz`` with x and y, or the four
    ``*-ubyte.gz`` of its home."""
    packed = folder / 'fashion_mnist.npz'
    if packed.is_file():
        arrays = _arrays(packed, ('x', 'y'))
        return _hold_out(Pictures(arrays['x'], arrays['y']))
    parts = {'train': 'train', 'test': 't10k'}
    files = {
        split: (
            folder / f'{part}-images-idx3-ubyte.gz',
            folder / f'{part}-labels-idx1-ubyte.gz',
        )
        for split, part in parts.items()
    }
    if not all(path.is_file() for pair in files.values() for path in pair):
        raise _missing('Fashion-MNIST', folder, (packed, *files['train']))
    return {
        split: Pictures(_idx(images), _idx(labels))
        for split, (images, labels) in files.items()
    }


def _idx(path: Path) -> np.ndarray:
    """An array of bytes: a zero each two bytes, kind, rank, then sizes."""
    with _readable(path):
        data = gzip.decompress(path.read_bytes())
        rank = data[3]
        shape = np.frombuffer(data, '>u4', rank, offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * rank).reshape(
            shape
        )


def _hold_out(whole: Pictures) -> dict[str, Pictures]:
    """The last pictures of each class are for testing."""
    test = np.zeros(len(whole), bool)
    for label in np.unique(whole.labels):
        places = np.flatnonzero(whole.labels == label)
        test[places[-min(_HELD_OUT, len(places) // 2) :]] = True
    return {
        split: Pictures(whole.images[chosen], whole.labels[chosen])
        for split, chosen in (('train', ~test), ('test', test))
    }


def tree_crowns(folder: Path) -> list[Aerial]:
    """Aerial photographs of ``tree_crowns/``, which ``annotations.json``
    (COCO) has boxes for."""
    path = folder / 'tree_crowns/annotations.json'
    if not path.is_file():
        raise _missing('the tree crowns', folder, (path,))
    with _readable(path):
        content = json.loads(path.read_text())
        boxes = {image['id']: [] for image in content['images']}
        for annotation in content['annotations']:
            boxes[annotation['image_id']].append(annotation['bbox'])
    found = []
    for image in content['images']:
        picture = cv2.imread(str(path.with_name(image['file_name'])))
        if picture is None:
            raise UserError(
                f'{path} lists {image["file_name"]}, which is not beside it '
                'or is no picture: copy it again'
            )
        rows = np.array(boxes[image['id']], float).reshape(-1, 4)
        found.append(Aerial(Path(image['file_name']).stem, picture, rows))
    return found


def _arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    with _readable(path), np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in names}


class _readable:
    """Tells which file is not what its name says."""

    def __init__(self, path: Path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        # What archives and arrays raise for other bytes than theirs.
        if isinstance(
            error,
            (OSError, ValueError, LookupError, EOFError, tarfile.TarError),
        ):
            raise UserError(
                f'{self.path} cannot be read ({error}): it is another file '
                'or only a part of one. Download it again.'
            ) from error


def _missing(what: str, folder: Path, files: Iterable[Path]) -> UserError:
    names = ' or '.join(path.name for path in files)
    return UserError(
        f'{what} is not in {folder}: it takes {names} there. docs/study.md '
        'says where they come from.'
    )
