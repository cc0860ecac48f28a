"""Pictures of what happened to the tokens of an image."""

from .hook import TokenVisualizationHook
from .picture import TokenPicture, draw_tokens

__all__ = ['TokenPicture', 'TokenVisualizationHook', 'draw_tokens']
