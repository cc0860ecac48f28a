"""The models of the configs by name, and those of others made thin."""

from .foreign import ThinClassifier, their_state_dict, thin
from .models import get_backbone, get_model, list_models

__all__ = [
    'ThinClassifier',
    'get_backbone',
    'get_model',
    'list_models',
    'their_state_dict',
    'thin',
]
