"""What thins the tokens of a trunk."""

from abc import abstractmethod

from mmengine.model import BaseModule
from torch import Tensor

from clustr_mm.tokens.provenance import Trail


class Reducer(BaseModule):
    """A rule that thins the patch tokens at one block of a trunk.

    It reports to the trail where the patches went. The class token is none
    of its business: the trunk puts it aside.
    """

    # 'before' the block, 'between' its attention and its FFN, or 'after' it.
    place = 'between'
    # What it needs to know of the block's attention, if it acts between; see
    # `Attention.ASKS`.
    asks: str | None = None

    @abstractmethod
    def forward(
        self, x: Tensor, trail: Trail, answer: Tensor | None
    ) -> Tensor:
        """Thin the tokens.

        Args:
            x (Tensor): Patch tokens [B, N, C].
            trail (Trail): Whom to tell.
            answer (Tensor, optional): What was asked for, [B, N] or, for
                keys, [B, N, D].

        Returns:
            Tensor: Tokens [B, K, C].
        """

    def fit(
        self, state_dict: dict, prefix: str, grid: tuple[int, int]
    ) -> None:
        """Make a checkpoint for another ``grid`` of patches fit this one.

        For reducers whose parameters depend on the grid.
        """
