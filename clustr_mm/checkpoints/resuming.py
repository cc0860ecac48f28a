"""Which checkpoint a run can go on from."""

import logging
from pathlib import Path
from typing import Any

from mmengine.logging import print_log

from clustr_mm.errors import UserError
from . import safe_loading


def newest_resumable(folder: str | Path) -> str | None:
    """The newest checkpoint in a folder that a run can go on from."""
    paths = Path(folder).glob('*.pth')
    for path in sorted(paths, key=lambda p: p.stat().st_mtime_ns)[::-1]:
        if path.name.startswith('best_'):  # without the optimizer
            continue
        try:
            checkpoint = safe_loading.load(path, map_location='cpu')
        except UserError as error:
            print_log(f'{error} Skipped.', level=logging.WARNING)
            continue
        if is_resumable(checkpoint):
            return str(path)
    return None


def is_resumable(checkpoint: Any) -> bool:
    """Whether there is what a run goes on from, besides weights."""
    return isinstance(checkpoint, dict) and {
        'meta',
        'message_hub',
        'state_dict',
    } <= set(checkpoint)
