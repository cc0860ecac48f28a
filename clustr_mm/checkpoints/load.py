"""Weights into a model, all of them."""

from pathlib import Path

from torch import nn

from . import published
from .layouts import CheckpointError, read


def load_weights(
    model: nn.Module, path: str | Path, prefix: str = 'backbone.'
) -> None:
    """Load a checkpoint that must have all weights whose names begin so.

    Args:
        model (nn.Module): The model.
        path (str | Path): A file, or the name of published weights.
        prefix (str): How the names begin that may not be missing.
    """
    if published.is_name(path):
        state_dict = published.load(path)['state_dict']
    else:
        state_dict = read(path)
    try:
        missing = model.load_state_dict(state_dict, strict=False).missing_keys
    except RuntimeError as error:
        # Its last line is about one of the tensors that do not fit.
        raise CheckpointError(
            f'{path} is of another model than the config describes: '
            f'{str(error).splitlines()[-1].strip()} Take the config that it '
            'was trained with, or another checkpoint.'
        ) from error
    missing = [key for key in missing if key.startswith(prefix)]
    if missing:
        raise CheckpointError(
            f'{path} lacks {len(missing)} weights of the model, among them '
            f'{missing[0]}. Convert a published checkpoint by '
            'tools/convert_checkpoint.py first, or take another.'
        )
