"""Weights of a checkpoint for a model that is only looked at."""

from torch import nn

from clustr_mm import checkpoints
from clustr_mm.errors import UserError


def load_weights(model: nn.Module, path: str) -> None:
    """Load a checkpoint of which the whole backbone must fit."""
    state_dict = checkpoints.read(path)
    try:
        missing = model.load_state_dict(state_dict, strict=False).missing_keys
    except RuntimeError as error:
        # Its last line is about one of the tensors that do not fit.
        raise UserError(
            f'{path} is of another model than the config describes: '
            f'{str(error).splitlines()[-1].strip()} Take the config that it '
            'was trained with, or another checkpoint.'
        ) from error
    missing = [key for key in missing if key.startswith('backbone.')]
    if missing:
        raise UserError(
            f'{path} lacks {len(missing)} weights of the backbone, among '
            f'them {missing[0]}. Published checkpoints are first converted by '
            'tools/convert_checkpoint.py.'
        )
