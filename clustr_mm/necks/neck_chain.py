"""Several necks in the place of one."""

from collections.abc import Sequence

from mmengine.model import BaseModule, ModuleList
from torch import Tensor

from clustr_mm.registry import MODELS


@MODELS.register_module()
class NeckChain(BaseModule):
    """Necks one after the other, for MMPose, which ignores a list of them.

    Args:
        necks (Sequence[dict]): Their configs. Each is fed what the one before
            it hands on.
        init_cfg (dict | list, optional): Initialisation.
    """

    def __init__(
        self, necks: Sequence[dict], init_cfg: dict | list | None = None
    ):
        super().__init__(init_cfg)
        self.necks = ModuleList(MODELS.build(neck) for neck in necks)

    def forward(self, inputs: Sequence[Tensor]) -> Sequence[Tensor] | Tensor:
        for neck in self.necks:
            inputs = neck(inputs)
        return inputs
