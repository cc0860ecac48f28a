"""Learning rates that decay with depth, for the models of all toolboxes.

MMPretrain has a constructor for this, which asks its classifiers for depths.
Those of the other toolboxes know a few backbones by name.
"""

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from clustr_mm.registry import OPTIM_WRAPPER_CONSTRUCTORS

BACKBONE = 'backbone.'


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(DefaultOptimWrapperConstructor):
    """Multiply learning rates by a constant for each layer towards the input.

    ``paramwise_cfg`` takes ``layer_decay_rate`` beside everything that the
    default constructor takes. The backbone says how deep a parameter lies by
    ``get_layer_depth(param_name, prefix)``, as those of MMPretrain do; necks
    and heads have the full rate.
    """

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = '', **kwargs
    ) -> None:
        super().add_params(params, module, prefix=prefix, **kwargs)
        if not prefix:  # the whole model, after all of its parts
            self._decay(params, module)

    def _decay(self, params: list[dict], model: nn.Module):
        backbone = getattr(model, 'backbone', None)
        if not hasattr(backbone, 'get_layer_depth'):
            raise TypeError(
                f'{type(backbone).__name__} does not know how deep its '
                'parameters lie (get_layer_depth): train it without '
                'layer_decay_rate, by the default constructor'
            )
        rate = self.paramwise_cfg.get('layer_decay_rate', 1.0)
        names = {id(p): name for name, p in model.named_parameters()}
        for group in params:
            name = names[id(group['params'][0])]
            depth, num_depths = backbone.get_layer_depth(name, BACKBONE)
            scale = rate ** (num_depths - 1 - depth)
            group['lr'] = group.get('lr', self.base_lr) * scale
