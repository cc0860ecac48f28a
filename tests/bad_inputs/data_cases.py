"""Bad pictures and annotations, through trainings and tests of all toolboxes.

A case spoils a copy of a small data set: all its training pictures or all its
validation pictures, since a training iteration sees them all.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np

from .cases import Case, nothing, replaced, writes
from .harness import ADVICE, PLACE

# Some of these a toolbox refuses in its own words.
THEIRS = re.compile(f'{PLACE}|{ADVICE.pattern}', re.IGNORECASE)

# Where a set of each kind has its pictures and its annotations.
PICTURES = {
    'classify': 'train/*/*.jpg',
    'segment': 'images/training/*.jpg',
    'detect': 'train2017/*.jpg',
    'pose': 'train2017/*.jpg',
}
JSON = {
    'detect': 'annotations/instances_train2017.json',
    'pose': 'annotations/coco_wholebody_train_v1.0.json',
}
MAPS = 'annotations/training/*.png'


def encoded(shape: tuple[int, ...], dtype=np.uint8) -> bytes:
    """A picture of noise; PNG, which readers recognise by its contents."""
    limit = np.iinfo(dtype).max
    rng = np.random.default_rng(0)
    image = rng.integers(0, limit, shape, dtype=dtype)
    return cv2.imencode('.png', image)[1].tobytes()


BAD_PICTURES = {
    'empty': lambda old: b'',
    'cut in their heads': lambda old: old[:15],
    'text': lambda old: b'404: not found\n',
    'random bytes': lambda old: bytes(range(256)),
}
ODD_PICTURES = {
    'of 1 x 1': lambda old: encoded((1, 1, 3)),
    'of 20000 x 4': lambda old: encoded((4, 20000, 3)),
    'grey': lambda old: encoded((64, 64)),
    'with alpha': lambda old: encoded((64, 64, 4)),
    'of 16 bits': lambda old: encoded((64, 64, 3), np.uint16),
}


def copies(name: str, change: Callable[[Path], None]):
    """Spoils a copy of a data set, called ``data``."""

    def spoil(folder: Path, materials: Path):
        shutil.copytree(materials / name, folder / 'data')
        change(folder / 'data')

    return spoil


def contents(pattern: str, change: Callable[[bytes], bytes]):
    def apply(data: Path):
        paths = sorted(data.glob(pattern))
        assert paths, pattern
        for path in paths:
            path.write_bytes(change(path.read_bytes()))

    return apply


def label_maps(change: Callable[[np.ndarray], np.ndarray]):
    def apply(data: Path):
        for path in data.glob(MAPS):
            labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            cv2.imwrite(str(path), change(labels))

    return apply


def annotations(name: str, change: Callable[[dict], object]):
    """Changes what a JSON file says, in place or by what is returned."""

    def apply(data: Path):
        path = data / JSON[name]
        found = json.loads(path.read_text())
        changed = change(found)
        path.write_text(json.dumps(found if changed is None else changed))

    return apply


def each(key: str, value) -> Callable[[dict], None]:
    def change(found: dict):
        for annotation in found['annotations']:
            annotation[key] = value

    return change


def removes(pattern: str):
    def apply(data: Path):
        for path in list(data.glob(pattern)):
            path.unlink() if path.is_file() else shutil.rmtree(path)

    return apply


def train(name: str, *options: str) -> list[str]:
    args = [f'{{m}}/{name}.py', '--data-root', 'data']
    return [*args, '--cfg-options', *options] if options else args


def bad_pictures() -> Iterator[Case]:
    for name, pattern in PICTURES.items():
        for kind, change in BAD_PICTURES.items():
            spoil = copies(name, contents(pattern, change))
            about = f'{name}, pictures {kind}'
            yield Case('train.py', train(name), about, ('.jpg',), spoil)
    for kind, change in BAD_PICTURES.items():
        spoil = copies('classify', contents('val/*/*.jpg', change))
        args = [train('classify')[0], '{m}/classify.pth', *train('')[1:]]
        about = f'classify, pictures {kind}'
        yield Case('test.py', args, about, ('.jpg',), spoil)
        spoil = copies('classify', contents('train/*/*.jpg', change))
        args = train('classify', 'train_dataloader.num_workers=1')
        about = f'classify in a worker, pictures {kind}'
        yield Case('train.py', args, about, ('.jpg',), spoil)


def odd_pictures() -> Iterator[Case]:
    for name, pattern in PICTURES.items():
        for kind, change in ODD_PICTURES.items():
            if name == 'segment' and kind in ('of 1 x 1', 'of 20000 x 4'):
                continue  # see bad_maps: they no longer fit their maps
            # Shrunk in proportion, its 4 rows become none.
            legal = (name, kind) != ('detect', 'of 20000 x 4')
            said = () if legal else ('.jpg', 'Resize')
            spoil = copies(name, contents(pattern, change))
            about = f'{name}, pictures {kind}'
            args = train(name)
            yield Case('train.py', args, about, said, spoil, legal=legal)


def bad_annotations() -> Iterator[Case]:
    spoilt = {
        'empty': lambda old: b'',
        'cut off': lambda old: old[: len(old) // 2],
        'a list': lambda old: b'[1, 2, 3]',
        'of other keys': lambda old: b'{"pictures": []}',
        'random bytes': lambda old: bytes(range(256)),
    }
    for name, file in JSON.items():
        for kind, change in spoilt.items():
            spoil = copies(name, contents(file, change))
            about = f'{name}, annotations {kind}'
            args = train(name)
            yield Case('train.py', args, about, (file,), spoil, advice=THEIRS)
        changes = {
            'without pictures': lambda found: found.update(images=[]),
            'without categories': lambda found: found.update(categories=[]),
            'of other categories': lambda found: found.update(
                categories=[dict(id=1, name='teapot')]
            ),
            'of unknown categories': each('category_id', 77),
            'without areas': each('bbox', [5, 5, 0, 0]),
            'outside of the pictures': each('bbox', [900, 900, 9, 9]),
            'with boxes of three numbers': each('bbox', [1, 2, 3]),
            'of pictures that are not there': lambda found: (
                [
                    image.update(file_name=f'no{image["file_name"]}')
                    for image in found['images']
                ]
                and None
            ),
        }
        for kind, change in changes.items():
            spoil = copies(name, annotations(name, change))
            about = f'{name}, annotations {kind}'
            said = '.jpg' if 'not there' in kind else JSON[name]
            # MMPose takes whoever is annotated for a person.
            legal = name == 'pose' and 'categories' in kind
            args = train(name)
            yield Case('train.py', args, about, (said,), spoil, legal=legal)
    # What is said, unless it is legal.
    points = {
        'out of the picture': [[-50, 900, 2] * 17, None],
        'not labelled': [[0, 0, 0] * 17, None],
        'too few': [[5, 5, 2] * 3, '.jpg'],
        'text': [['x'] * 51, JSON['pose']],
    }
    for kind, (value, said) in points.items():
        change = annotations('pose', each('keypoints', value))
        yield Case(
            'train.py',
            train('pose'),
            f'pose, key points {kind}',
            (said,) if said else (),
            copies('pose', change),
            legal=said is None,
            advice=THEIRS if said == JSON['pose'] else ADVICE,
        )


def bad_maps() -> Iterator[Case]:
    changes = {
        'with a label too large': lambda labels: labels * 0 + 99,
        'of another size': lambda labels: labels[:32, :32],
        'of three channels': lambda labels: np.dstack([labels] * 3),
    }
    for kind, change in changes.items():
        spoil = copies('segment', label_maps(change))
        about = f'segment, label maps {kind}'
        yield Case('train.py', train('segment'), about, ('.png',), spoil)
    for kind, change in BAD_PICTURES.items():
        spoil = copies('segment', contents(MAPS, change))
        about = f'segment, label maps {kind}'
        yield Case('train.py', train('segment'), about, ('.png',), spoil)
    spoil = copies('segment', removes('annotations/training/*_00000[01].png'))
    about = 'segment, label maps missing'
    yield Case('train.py', train('segment'), about, ('.png',), spoil)
    for kind in ('of 1 x 1', 'of 20000 x 4'):
        change = contents(PICTURES['segment'], ODD_PICTURES[kind])
        about = f'segment, pictures {kind} with other maps'
        spoil = copies('segment', change)
        yield Case('train.py', train('segment'), about, ('.png',), spoil)


def bad_folders() -> Iterator[Case]:
    for name in PICTURES:
        for kind, spoil in {
            'missing': nothing,
            'a file': writes('data', 'no folder'),
            'empty': writes('data', None),
        }.items():
            about = f'{name}, data {kind}'
            yield Case('train.py', train(name), about, ('data',), spoil)
            args = [train(name)[0], f'{{m}}/{name}.pth', *train(name)[1:]]
            yield Case('test.py', args, about, ('data',), spoil)
        spoil = copies(name, removes(PICTURES[name]))
        said = 'data' if name in ('classify', 'segment') else '.jpg'
        about = f'{name}, no pictures'
        yield Case('train.py', train(name), about, (said,), spoil)
    for name, file in JSON.items():
        spoil = copies(name, removes(file))
        about = f'{name}, no annotations'
        yield Case('train.py', train(name), about, (file,), spoil)
    spoil = copies(
        'classify',
        lambda data: shutil.copytree(
            data / 'train/star', data / 'train/teapot'
        ),
    )
    about = 'classify, a class too many'
    yield Case('train.py', train('classify'), about, ('data', '6'), spoil)


def drawn_pictures() -> Iterator[Case]:
    """What the tools that take single pictures make of them."""
    commands = {
        'visualize_tokens.py': replaced(
            'visualize_tokens.py', '{m}/image.png', 'bad.png'
        ),
        'benchmark.py': [
            *('dials', 'bad.png', '--shape', '32', '32', '--rounds', '1'),
            *('--budget', '0.1'),
        ],
    }
    missing = {
        'missing': nothing,
        'a folder without any': writes('bad.png', None),
    }
    for tool, args in commands.items():
        for kind, change in BAD_PICTURES.items():
            spoil = writes('bad.png', change(encoded((8, 8, 3))))
            yield Case(tool, args, f'picture {kind}', ('bad.png',), spoil)
        for kind, spoil in missing.items():
            yield Case(tool, args, f'picture {kind}', ('bad.png',), spoil)
    for kind, change in ODD_PICTURES.items():
        spoil = writes('bad.png', change(b''))
        args = commands['visualize_tokens.py']
        yield Case(
            'visualize_tokens.py',
            args,
            f'picture {kind}',
            spoil=spoil,
            legal=True,
        )
