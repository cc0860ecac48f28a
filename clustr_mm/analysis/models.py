"""Models of configs of the four toolboxes, and inputs that they take."""

from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import init_default_scope
from torch import Tensor, nn

# What it registers may be the model of a config.
from clustr_mm import configs, training  # noqa: F401
from clustr_mm.errors import building
from clustr_mm.registry import MODELS
from clustr_mm.toolboxes import toolbox_of


def read_config(path: str, options: dict | None = None) -> Config:
    """Read a config of any toolbox."""
    cfg = configs.read(path, options)
    toolbox_of(cfg).require()
    return cfg


def build_model(cfg: Config) -> nn.Module:
    """Build a config's model in eval mode, with random weights."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    with building(f'the model of {configs.describe(cfg)}'):
        model = revert_sync_batchnorm(MODELS.build(cfg.model))
    model.eval()
    return model


def usual_size(cfg: Config) -> tuple[int, int]:
    """Height and width of the images that a config is made for."""
    return toolbox_of(cfg).image_size(cfg)


def example_inputs(
    cfg: Config, batch: int, size: tuple[int, int]
) -> dict[str, Tensor | list | None]:
    """What a config's model takes: see `Toolbox.example_inputs`."""
    return toolbox_of(cfg).example_inputs(cfg, batch, size)
