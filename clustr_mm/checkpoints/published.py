"""Weights that others have published, by name.

``published:deit-small`` stands for those of DeiT-S wherever MMEngine takes a
checkpoint. They are downloaded once into the folder that torch.hub downloads
to, or looked for in the one that ``CLUSTR_MM_WEIGHTS`` names, opened safely
and converted to our names. `published.yml` lists them.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlsplit

import torch
import yaml
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import DefaultScope

from clustr_mm.configs import config_folder
from clustr_mm.errors import UserError, summary
from clustr_mm.registry import MODELS
from .download import DownloadError, download
from .layouts import (
    LAYOUTS,
    CheckpointError,
    StateDict,
    convert,
    read,
    write_converted,
)

PREFIX = 'published:'
# A folder of published files, for hosts without a network; or 'random', to
# try things out with models that have learnt nothing.
PLACE = 'CLUSTR_MM_WEIGHTS'
RANDOM = 'random'
_TABLE = Path(__file__).with_suffix('.yml')


@dataclass(frozen=True)
class Weights:
    """A published file.

    Attributes:
        name: What follows ``published:``.
        project: Who published it.
        code: Address of their code.
        licence: Of the weights.
        layout: Of the file, one of ``LAYOUTS``.
        urls: Addresses, the first of which that answers will do.
        top1: On ImageNet-1k, as they report it.
        config: Path below the configs of the one that describes the model,
            if there is one.
        options: What is to be changed in it.
    """

    name: str
    project: str
    code: str
    licence: str
    layout: str
    urls: tuple[str, ...]
    top1: float | None = None
    config: str | None = None
    options: dict = field(default_factory=dict)

    @property
    def file(self) -> str:
        """Name of the file, as a browser or others would save it."""
        name = Path(urlsplit(self.urls[0]).path).name
        return name if '.pth' in name else f'{self.name}.pth'

    @property
    def digest(self) -> str:
        """How its SHA-256 begins, as far as its name tells."""
        found = re.search(r'-([0-9a-f]{8,})\.pth$', self.file)
        return found[1] if found else ''


@cache
def table() -> dict[str, Weights]:
    """All of them by name."""
    projects = yaml.safe_load(_TABLE.read_text())
    found = {}
    for project, shared in projects.items():
        shared = {'project': project, **shared}
        for name, own in shared.pop('weights').items():
            own = {**shared, **own}
            urls = [own.pop('url')] if 'url' in own else []
            if 'drive' in own:
                urls.append(
                    'https://drive.google.com/uc?export=download&id='
                    + own.pop('drive')
                )
            found[name] = Weights(name=name, urls=tuple(urls), **own)
    return found


def is_name(checkpoint: str | os.PathLike) -> bool:
    """Whether what is given for a checkpoint is such a name."""
    return str(checkpoint).startswith(PREFIX)


def find(name: str) -> Weights:
    """What a name, with or without ``published:``, stands for."""
    known, name = table(), name.removeprefix(PREFIX)
    if name not in known:
        close = get_close_matches(name, known, 3, 0.5) or known
        raise UserError(
            f'nothing is known to be published as {PREFIX}{name}: take '
            f'{" or ".join(PREFIX + other for other in close)}'
        )
    return known[name]


def check(name: str) -> None:
    """Make sure, before a run begins, that what it starts from is there."""
    find(name)
    if os.environ.get(PLACE) != RANDOM:
        fetch(name)


def load(name: str) -> dict:
    """Load weights by their name, under our own names, onto the CPU."""
    if os.environ.get(PLACE) == RANDOM:
        return dict(state_dict=_made_up(find(name)))
    return dict(state_dict=read(fetch(name)))


def fetch(name: str) -> Path:
    """The converted file, which is made where it is not there yet.

    Processes that want the same file at the same time wait for the one that
    came first.
    """
    weights = find(name)
    cache = Path(torch.hub.get_dir(), 'checkpoints')
    place = os.environ.get(PLACE)
    file = (Path(place).expanduser() if place else cache) / weights.file
    own = cache / 'clustr_mm'
    # Needs no lock, which a cache that can only be read would refuse.
    if file.is_file() and _converted(own, file, weights).is_file():
        return _converted(own, file, weights)
    try:
        own.mkdir(parents=True, exist_ok=True)
        with _alone(own / f'.{weights.name}.lock', weights):
            if not file.is_file():
                _get(weights, file)
            converted = _converted(own, file, weights)
            if not converted.is_file():
                _check_digest(weights, file)
                state_dict = _convert(weights, file)
                write_converted(state_dict, converted, weights.layout)
                print_log(_terms(weights))
    except OSError as error:
        raise UserError(
            f'cannot write to {own}, where {PREFIX}{weights.name} is kept '
            f'({summary(error)}): name another folder by TORCH_HOME=DIR'
        ) from error
    return converted


def _converted(own: Path, file: Path, weights: Weights) -> Path:
    """Another one if the file is, or the names that it is converted to."""
    status = os.stat(file)
    of = status.st_size, status.st_mtime_ns, LAYOUTS[weights.layout]
    version = hashlib.sha256(repr(of).encode()).hexdigest()[:8]
    return own / f'{weights.name}-{version}.pth'


@contextmanager
def _alone(path: Path, weights: Weights) -> Iterator[None]:
    """With nobody else at the same file. A killed process keeps no lock."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        print_log(f'Another process prepares {PREFIX}{weights.name}: waiting')
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _get(weights: Weights, path: Path) -> None:
    """Download the published file, unless the user says that it is there."""
    if place := os.environ.get(PLACE):
        raise UserError(
            f'{path} does not exist, and {PLACE}={place} says that published '
            f'weights are there: put {weights.urls[0]} there under this '
            f'name, or unset {PLACE} to have it downloaded'
        )
    failed = []
    for url in weights.urls:
        print_log(f'Downloading {PREFIX}{weights.name} from {url} to {path}')
        try:
            download(url, path, partial(_check, weights))
            return
        except DownloadError as error:
            failed.append(f'{url} ({error})')
    raise UserError(
        f'{PREFIX}{weights.name} could not be downloaded from '
        f'{", nor from ".join(failed)}. Get it by a browser or on another '
        f'machine, and copy it to {path}; or name the folder that holds '
        f'{weights.file} by {PLACE}=DIR'
    )


def _check(weights: Weights, path: Path) -> None:
    """Make sure that a file is the one that was meant."""
    _check_digest(weights, path)
    _convert(weights, path)


def _check_digest(weights: Weights, path: Path) -> None:
    if not weights.digest:
        return
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if not digest.hexdigest().startswith(weights.digest):
        raise UserError(
            f'{path} is not {PREFIX}{weights.name}: its SHA-256 begins with '
            f'{digest.hexdigest()[:8]}, not with {weights.digest}. Download '
            f'it again from {weights.urls[0]}'
        )


def _convert(weights: Weights, path: Path) -> StateDict:
    """The weights in our names, if the file has them."""
    state_dict = read(path)
    try:
        return convert(state_dict, weights.layout)
    except CheckpointError as error:
        raise UserError(
            f'{path} is not {PREFIX}{weights.name}: {error} Download it again '
            f'from {weights.urls[0]}'
        ) from error


def _terms(weights: Weights) -> str:
    """Whose weights these are, to be said once."""
    said = f'{PREFIX}{weights.name} is from {weights.code}, under the '
    said += f'licence {weights.licence}'
    if '-NC-' in weights.licence:
        said += ', which does not allow commercial use'
    return said


def _made_up(weights: Weights) -> StateDict:
    """Random weights of the same names and shapes, the same each time."""
    if weights.config is None:
        raise UserError(
            f'{PREFIX}{weights.name} belongs to no config, so {PLACE}='
            f'{RANDOM} cannot stand for it: unset it, or take other weights'
        )
    print_log(f'{PREFIX}{weights.name} is random, as {PLACE}={RANDOM} says')
    cfg = Config.fromfile(config_folder() / weights.config)
    cfg.merge_from_dict(weights.options)
    with (
        torch.random.fork_rng(devices=[]),
        DefaultScope.overwrite_default_scope(cfg.default_scope),
    ):
        torch.manual_seed(0)
        return MODELS.build(cfg.model).state_dict()
