"""A folder of pictures, one folder a class, divided for training."""

import random
from pathlib import Path

from clustr_mm import outputs
from clustr_mm.errors import UserError

# What MMPretrain takes for a picture.
SUFFIXES = ('.jpg', '.jpeg', '.png', '.ppm', '.bmp', '.pgm', '.tif')


def split_folder(
    folder: str | Path, val: float = 0.2, seed: int = 0
) -> dict[str, tuple[int, int]]:
    """Write ``train.txt`` and ``val.txt``, lists of pictures and labels.

    The pictures stay where they are. Labels follow the sorted names of the
    folders, as if the folder was read without lists.

    Args:
        folder (str | Path): Has a folder for each class, and pictures below.
        val (float): Share of each class to validate on; at least one picture.
        seed (int): Which pictures those are.

    Returns:
        dict[str, tuple[int, int]]: How many pictures of each class there are
        to train and to validate on.
    """
    folder = Path(folder)
    classes = _pictures(folder)
    lists, counts = {'train': [], 'val': []}, {}
    rng = random.Random(seed)
    for label, (name, pictures) in enumerate(classes.items()):
        rng.shuffle(pictures)
        num_val = min(max(round(val * len(pictures)), 1), len(pictures) - 1)
        for split, part in (
            ('train', pictures[num_val:]),
            ('val', pictures[:num_val]),
        ):
            lists[split] += [f'{path} {label}\n' for path in sorted(part)]
        counts[name] = len(pictures) - num_val, num_val
    for split, lines in lists.items():
        _write(folder / f'{split}.txt', ''.join(lines))
    return counts


def _write(path: Path, text: str):
    if path.exists() and path.read_text() != text:
        raise UserError(
            f'{path} is there and divides otherwise: move it away for a new '
            'one'
        )
    outputs.check_file(path).write_text(text)


def _pictures(folder: Path) -> dict[str, list[str]]:
    """Paths of the pictures of each class, relative to the folder."""
    if not folder.is_dir():
        raise UserError(f'there is no folder {folder}')
    names = sorted(
        path.name
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith('.')
    )
    if {'train', 'val'} <= set(names):
        raise UserError(
            f'{folder} is divided already: it has train/ and val/. Leave the '
            "config's split as it is"
        )
    classes = {
        name: sorted(
            path.relative_to(folder).as_posix()
            for path in (folder / name).rglob('*')
            if path.suffix.lower() in SUFFIXES
        )
        for name in names
    }
    for name, pictures in classes.items():
        if len(pictures) < 2:
            raise UserError(
                f'{folder / name} has {len(pictures)} pictures '
                f'({", ".join(SUFFIXES)}): a class needs two or more, to '
                'train and to validate on. Add some, or move the folder away'
            )
    if len(classes) < 2:
        raise UserError(
            f'{folder} has {len(classes)} folders: it needs one for each '
            'class, with its pictures inside'
        )
    return classes
