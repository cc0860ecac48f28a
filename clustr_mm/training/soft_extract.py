"""PoWER-BERT's search for how many tokens each block should keep.

In stage 2 of its training nothing leaves yet. The tokens of a block, sorted
by significance, are scaled by one retention parameter a position; a penalty
shrinks these. Their sum is what the block should keep in stage 3.
"""

import math

import torch
from mmpretrain.models import ImageClassifier
from torch import Tensor, nn

from clustr_mm.backbones.vit import ThinViT
from clustr_mm.layers.reducer import Reducer
from clustr_mm.registry import MODELS
from clustr_mm.tokens.trail import Trail


@MODELS.register_module()
class SoftExtract(Reducer):
    """Scale tokens by how much their rank in significance counts.

    Args:
        trunk: Arguments of :class:`Reducer`.
    """

    statistic = 'column_sum'

    def __init__(self, **trunk):
        super().__init__(**trunk)
        # From 1, keep all, to 0; the most significant token comes first.
        self.retention = nn.Parameter(torch.ones(math.prod(self.grid)))

    def forward(self, x: Tensor, trail: Trail, column_sum: Tensor) -> Tensor:
        if x.shape[1] != len(self.retention):
            raise ValueError(
                f'the search has a parameter for each of '
                f'{len(self.retention)} tokens, but an image has '
                f'{x.shape[1]}: set img_size to the size of the images'
            )
        if self.training:
            # Outside of [0, 1] there would be no gradient to come back by.
            with torch.no_grad():
                self.retention.clamp_(0, 1)
        order = column_sum.topk(x.shape[1]).indices
        factor = self.retention.expand(len(x), -1).clamp(0, 1)
        factor = torch.zeros_like(factor).scatter(1, order, factor)
        return x * factor[..., None].to(x.dtype)

    @property
    def mass(self) -> Tensor:
        """How many tokens the parameters stand for."""
        return self.retention.clamp(0, 1).sum()


@MODELS.register_module()
class SoftExtractDeiT(ThinViT):
    """DeiT with a soft-extract layer in each block.

    Args:
        kwargs: Arguments of :class:`ThinViT`.
    """

    def __init__(self, arch: str | dict = 'deit-small', **kwargs):
        super().__init__(arch, **kwargs)
        self.place_reducers(
            SoftExtract(block=block, grid=self.grid)
            for block in range(self.num_layers)
        )


@MODELS.register_module()
class KeepSearch(ImageClassifier):
    """An image classifier that learns how many tokens its blocks need.

    Args:
        sparsity_weight (float): Weight of the penalty, lambda: the larger,
            the fewer tokens are kept.
        kwargs: Arguments of ``ImageClassifier``, with a
            :class:`SoftExtractDeiT` for ``backbone``, or another
            :class:`ThinViT` with a :class:`SoftExtract` in each block.
    """

    def __init__(self, sparsity_weight: float = 3e-4, **kwargs):
        super().__init__(**kwargs)
        layers = getattr(self.backbone, 'reducers', ())
        if not layers or not all(isinstance(r, SoftExtract) for r in layers):
            raise ValueError(
                'KeepSearch needs a SoftExtractDeiT as backbone, not '
                f'{type(self.backbone).__name__}'
            )
        if sparsity_weight < 0:
            raise ValueError(
                f'sparsity_weight must not be negative: {sparsity_weight}'
            )
        self.sparsity_weight = sparsity_weight

    def loss(self, inputs: Tensor, data_samples: list) -> dict[str, Tensor]:
        """The head's losses, the penalty, and how many tokens a block keeps
        in the mean.

        A token saved in an early block is saved in all that follow, but the
        late ones can spare more: each counts as often as its block's number.
        """
        losses = super().loss(inputs, data_samples)
        # In the log, `loss` is the sum of all.
        losses['loss_cls'] = losses.pop('loss')
        masses = self.masses()
        number = torch.arange(1, len(masses) + 1, device=masses.device)
        losses['loss_sparsity'] = (
            self.sparsity_weight * (number * masses).sum()
        )
        losses['kept'] = masses.detach().mean()
        return losses

    def masses(self) -> Tensor:
        """How many tokens the parameters of each block stand for."""
        return torch.stack([layer.mass for layer in self.backbone.reducers])

    @torch.no_grad()
    def found(self) -> list[int]:
        """How many tokens each block should keep, never more than the block
        before."""
        keep, left = [], math.prod(self.backbone.grid)
        for mass in self.masses().tolist():
            # What float32 sums up to 7.0000005 is 7.
            left = min(left, math.ceil(mass - 1e-3))
            keep.append(left)
        return keep
