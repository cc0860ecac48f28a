"""What each of the four toolboxes does in its own way, a file each."""

from mmengine.config import Config

from .mmdet import MMDetection
from .mmpose import MMPose
from .mmpretrain import MMPretrain
from .mmseg import MMSegmentation
from .toolbox import Reduced, Toolbox

TOOLBOXES: dict[str, Toolbox] = {
    toolbox.scope: toolbox
    for toolbox in (MMPretrain(), MMSegmentation(), MMDetection(), MMPose())
}

__all__ = ['TOOLBOXES', 'Reduced', 'Toolbox', 'toolbox_of']


def toolbox_of(cfg: Config) -> Toolbox:
    """Whose a config is, by its ``default_scope``."""
    scope = cfg.get('default_scope')
    return TOOLBOXES.get(scope) or Toolbox()
