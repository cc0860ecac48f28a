"""Weights of one's own, in a file to give on."""

import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from clustr_mm import outputs
from clustr_mm.errors import UserError, summary
from . import safe_loading
from .layouts import CheckpointError, weights_in


class Published(NamedTuple):
    """What was written.

    Attributes:
        path: The file, whose name carries the beginning of its SHA-256.
        num_parameters: Of the model.
        metrics: What the run had measured, by the names of its metrics.
    """

    path: Path
    num_parameters: int
    metrics: dict[str, float]


def publish(src: str | Path, dst: str | Path) -> Published:
    """Write the weights of a run's model, and nothing else of the run.

    Where weights were averaged, a run's checkpoint has the averaged ones as
    its model, and they are what is written.

    Args:
        src (str | Path): A checkpoint, or the folder of a run: its best
            checkpoint, or else its last.
        dst (str | Path): ``NAME.pth``; what is written is
            ``NAME-XXXXXXXX.pth``.
    """
    dst = Path(dst)
    if dst.suffix != '.pth':
        raise UserError(f'{dst} must end with .pth')
    outputs.check_file(dst)
    src = _choose(Path(src))
    file = safe_loading.load(src, 'cpu')
    weights = _plain(weights_in(file, src))
    meta = file.get('meta') if 'state_dict' in file else None
    described = meta.get('dataset_meta') if isinstance(meta, dict) else None
    dataset_meta = _plain_values(described) or {}
    data = io.BytesIO()
    torch.save(
        dict(meta=dict(dataset_meta=dataset_meta), state_dict=weights), data
    )
    digest = hashlib.sha256(data.getvalue()).hexdigest()[:8]
    path = dst.with_name(f'{dst.stem}-{digest}.pth')
    try:
        outputs.write_atomically(path, data.getvalue())
    except OSError as error:
        raise CheckpointError(
            f'cannot write {path} ({summary(error)}): give another file'
        ) from error
    return Published(path, _count(weights), _metrics(file))


def _choose(src: Path) -> Path:
    """The checkpoint of a run's folder that is worth most."""
    if not src.is_dir():
        return src
    best = sorted(src.glob('best_*.pth'))
    if len(best) > 1:
        raise UserError(
            f'{src} has several best checkpoints: give one of '
            f'{", ".join(map(str, best))}'
        )
    if best:
        return best[0]
    last = src / 'last_checkpoint'
    if not last.is_file():
        raise UserError(f'there is no checkpoint in {src}: give a file')
    # Where it was written; the folder may have been moved since.
    return src / Path(last.read_text()).name


def _plain(weights: Mapping) -> dict[str, torch.Tensor]:
    """Tensors on their own, in memory of just their size."""
    return {name: value.detach().clone() for name, value in weights.items()}


def _plain_values(value: Any) -> Any:
    """What a data set says of itself, as anybody may open it.

    Names and colours of classes, which toolboxes draw by. What is no plain
    value becomes None.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, set)):
        return [_plain_values(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_plain_values(item) for item in value)
    return value if isinstance(value, (bool, int, float, str)) else None


def _count(weights: dict[str, torch.Tensor]) -> int:
    """Parameters, among which are no statistics of batch norms."""
    statistics = ('running_mean', 'running_var', 'num_batches_tracked')
    return sum(
        value.numel()
        for name, value in weights.items()
        if not name.endswith(statistics)
    )


def _metrics(file: Mapping) -> dict[str, float]:
    """The last value of each metric that the run had validated by."""
    hub = file.get('message_hub')
    scalars = hub.get('log_scalars', {}) if isinstance(hub, Mapping) else {}
    return {
        name.removeprefix('val/'): float(history.current())
        for name, history in scalars.items()
        if name.startswith('val/') and 'time' not in name
    }
