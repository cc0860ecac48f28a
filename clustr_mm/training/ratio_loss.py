"""What holds DynamicViT to the shares of tokens that it is to keep."""

from collections.abc import Sequence
from functools import partial

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from clustr_mm.backbones.dynamic_vit import PredictedTokens
from clustr_mm.registry import HOOKS
from clustr_mm.wrappers import unwrapped
from .global_batch import global_mean


def ratio_loss(
    decisions: Sequence[Tensor],
    shares: Sequence[float],
    per_image: bool = False,
) -> Tensor:
    """Squared distance of the kept share from its target (eq. 14).

    Args:
        decisions (Sequence[Tensor]): For each stage, which tokens stay (1)
            or leave (0), [B, N].
        shares (Sequence[float]): Target of each stage.
        per_image (bool): Whether every image has to meet the target, or the
            batch of all processes as a whole.
    """
    if len(shares) != len(decisions):
        raise ValueError(f'{len(decisions)} stages, but {len(shares)} shares')
    kept = torch.stack([stays.float().mean(-1) for stays in decisions])
    if not per_image:
        kept = global_mean(kept.mean(1))
    errors = [
        (mean - share).square().mean() for mean, share in zip(kept, shares)
    ]
    return torch.stack(errors).mean()


def ratio_losses(
    decisions: Sequence[Tensor],
    shares: Sequence[float],
    weight: float,
    per_image: bool = False,
) -> dict[str, Tensor]:
    """The weighted loss, and the share of the tokens that each stage keeps,
    by their names in the log."""
    loss = ratio_loss(decisions, shares, per_image)
    losses = {'loss_ratio': weight * loss}
    for stage, stays in enumerate(decisions, 1):
        losses[f'kept_{stage}'] = stays.detach().mean()
    return losses


@HOOKS.register_module()
class RatioLoss(Hook):
    """Add the ratio loss to those of any model with a DynamicViT in it, such
    as a detector.

    Without it the predictors let all tokens stay in training, and the test
    is of another model. A `SparseClassifier` has it by itself.

    Args:
        weight (float): Weight of the loss.
        per_image (bool): See :func:`ratio_loss`.
    """

    def __init__(self, weight: float = 2.0, per_image: bool = False):
        self.weight = weight
        self.per_image = per_image
        self._decisions: Sequence[Tensor] = ()
        self._handles = []

    def before_train(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        stages = [m for m in model.modules() if isinstance(m, PredictedTokens)]
        if not stages:
            raise ValueError(
                'RatioLoss needs a DynamicViT, but this model has none'
            )
        shares = [stage.keep for stage in stages]
        self._handles = [
            stages[-1].register_forward_hook(self._note_decisions),
            model.register_forward_hook(
                partial(self._add_loss, shares), with_kwargs=True
            ),
        ]

    def after_train(self, runner: Runner) -> None:
        for handle in self._handles:
            handle.remove()

    def _note_decisions(
        self, stage: PredictedTokens, args: tuple, output: Tensor
    ) -> None:
        _, trail = args[:2]
        self._decisions = trail.decisions

    def _add_loss(
        self,
        shares: Sequence[float],
        model: nn.Module,
        args: tuple,
        kwargs: dict,
        losses: dict,
    ) -> dict | None:
        # Validations between the epochs ask for something else.
        if kwargs.get('mode') != 'loss':
            return None
        decisions, self._decisions = self._decisions, ()
        more = ratio_losses(decisions, shares, self.weight, self.per_image)
        return {**losses, **more}
