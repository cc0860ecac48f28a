"""A frozen network that another one learns from."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from clustr_mm.registry import MODELS


class Teacher(nn.Module):
    """A frozen network, always in eval mode.

    It moves between devices with the model that holds it, but is none of its
    children: it is in no checkpoint, optimizer, moving average or exchange
    of gradients.

    Args:
        network (dict | nn.Module): The network or its config, with an
            ``init_cfg`` that says where its weights are, unless somebody
            else gives them.
    """

    def __init__(self, network: dict | nn.Module):
        super().__init__()
        if not isinstance(network, nn.Module):
            network = MODELS.build(network)
        network.eval()
        network.requires_grad_(False)
        # A tuple hides it from the registration of children.
        self._hidden = (network,)

    @property
    def network(self) -> nn.Module:
        return self._hidden[0]

    def init_weights(self) -> None:
        self.network.init_weights()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Any:
        """Features: of a classifier, or all that another network returns."""
        network = self.network
        # FSDP moves the children of a model, of which this is none.
        if next(network.parameters()).device != images.device:
            network.to(images.device)
        forward = getattr(network, 'extract_feat', network)
        return forward(images)

    def _apply(self, fn: Callable, recurse: bool = True) -> 'Teacher':
        self.network._apply(fn, recurse)
        return self

    def __deepcopy__(self, memo: dict) -> 'Teacher':
        """Whoever copies the model, for a moving average, shares it."""
        return self
