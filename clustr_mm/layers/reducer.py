"""What thins the tokens of a trunk."""

from abc import abstractmethod
from collections.abc import Sequence

from mmengine.model import BaseModule
from torch import Tensor

from clustr_mm.arguments import check_types
from clustr_mm.tokens.trail import Trail

PLACES = ('before', 'between', 'after')


class Reducer(BaseModule):
    """A rule that thins the patch tokens at one block of a trunk.

    It reports to the trail where the patches went. The class token is none
    of its business: the trunk puts it aside.

    A trunk that builds a reducer from a config tells it what it is like, so
    a constructor hands on the arguments that it does not know.

    Args:
        block (int): The block at which it acts, from 0.
        embed_dims (int, optional): Number of channels of the trunk.
        grid (tuple[int, int], optional): Patches of an image of the trunk's
            usual size, height and width.
        with_cls_token (bool): Whether the trunk has a class token.
        init_cfg (dict | list, optional): Initialisation.
    """

    # 'before' the block, 'between' its attention and its FFN, or 'after' it.
    place = 'between'
    # What it gets to know of the block's attention, if it acts between; one
    # of `Attention.STATISTICS`.
    statistic: str | None = None
    # What its products are, for `clustr_mm.analysis.cost`.
    counts_as = 'clustering'
    # Whether it asks the trail about the patches, whatever the outputs are.
    needs_trail = False
    # What a training needs besides because of it, whatever the task.
    hooks: Sequence[dict] = ()

    @check_types
    def __init__(
        self,
        block: int,
        embed_dims: int | None = None,
        grid: Sequence[int] | None = None,
        with_cls_token: bool = True,
        init_cfg: dict | list | None = None,
    ):
        super().__init__(init_cfg)
        self.block = block
        self.embed_dims = embed_dims
        self.grid = grid
        self.with_cls_token = with_cls_token

    @abstractmethod
    def forward(
        self, x: Tensor, trail: Trail, statistic: Tensor | None
    ) -> Tensor:
        """Thin the tokens.

        Args:
            x (Tensor): Patch tokens [B, N, C].
            trail (Trail): Whom to tell.
            statistic (Tensor, optional): What it gets to know of the
                attention, [B, N] or, of keys, [B, N, D].

        Returns:
            Tensor: Tokens [B, K, C].
        """

    def resize_weights(
        self, state_dict: dict, prefix: str, grid: tuple[int, int]
    ) -> None:
        """Make a checkpoint for another ``grid`` of patches fit this one.

        For reducers whose parameters depend on the grid.
        """
