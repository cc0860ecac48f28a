"""How fast the arms of a claim are, apart from their training.

All arms of a claim take turns in one run, on a machine that does nothing
else; what is told of an arm is how it compares with the claim's first.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from mmengine.config import Config
from torch import Tensor, nn

from clustr_mm import configs
from clustr_mm.analysis.measure import Setting
from clustr_mm.analysis.models import build_model
from clustr_mm.analysis.speed import Spread, compare
from clustr_mm.tokens import processor
from .claims import ARMS, CLAIMS

BATCH = 8
# Beside the results.
TIMES = 'times.json'


def measure(
    names: Sequence[str],
    folder: Path,
    path: Path,
    rounds: int = 20,
    say: Callable[[str], object] = print,
) -> None:
    """Time the backbones of claims, and write what came out into a file.

    Args:
        names (Sequence[str]): Of the claims. What the file has of others
            stays.
        folder (Path): The configs of this project.
        path (Path): JSON.
        rounds (int): How many times each arm is timed.
        say (Callable): Takes a line for each arm.
    """
    found = read(path)
    for name in names:
        arms = CLAIMS[name].arms
        say(f'\n{name}, times over {arms[0]}')
        found[name] = _compare(arms, folder, rounds)
        for arm, ratio in found[name]['speedup'].items():
            say(f'{arm:30} {Spread(*ratio):.2f}')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + '\n')


def read(path: Path) -> dict[str, dict]:
    """What was measured, by claim."""
    return json.loads(path.read_text()) if path.is_file() else {}


def _compare(arms: Sequence[str], folder: Path, rounds: int) -> dict:
    calls = {}
    for arm in arms:
        cfg = configs.read(folder / 'study' / ARMS[arm].config)
        configs.override(cfg, dict(ARMS[arm].options))
        model, image = backbone_call(cfg, BATCH)
        calls[arm] = partial(model, image)
    with torch.no_grad():
        timed = compare(calls, rounds=rounds)
    return dict(
        processor=processor.name(),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        batch=BATCH,
        rounds=timed.num_rounds,
        first=arms[0],
        milliseconds=round(1e3 * timed.time(arms[0]).median, 3),
        # Median and quartiles.
        speedup={
            arm: [round(x, 3) for x in vars(timed.speedup(arm)).values()]
            for arm in arms
        },
    )


def backbone_call(cfg: Config, batch: int) -> tuple[nn.Module, Tensor]:
    """The backbone of an arm's config, and images of the size that it gets.

    Weights are random: cost does not depend on them, and time hardly.
    """
    images = Setting().picture(batch, 3, *cfg.image_size)
    return build_model(cfg).backbone, images
