"""What all backbones do alike: presets, outputs, parts that do not learn."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from mmengine.model import BaseModule
from mmengine.utils.dl_utils.parrots_wrapper import _BatchNorm
from torch import nn


class Backbone(BaseModule):
    """A network of stages, or of blocks, any of which may be an output.

    Its first stages can be frozen: they do not learn, and are in eval mode
    whichever mode the rest is in.
    """

    arch_zoo: dict[str, dict]
    # What outputs and frozen parts are counted in.
    unit = 'stages'
    # Whether it has maps of several strides, as a convolutional network has,
    # or a single one.
    is_pyramid = False
    # What a training of it needs besides, whatever the task.
    hooks: Sequence[dict] = ()

    # See `choose_frozen`.
    frozen_stages: int
    norm_eval: bool

    def choose_arch(self, arch: str | dict) -> dict:
        """Settings of a preset, or those given."""
        if isinstance(arch, str) and arch not in self.arch_zoo:
            raise ValueError(
                f'{type(self).__name__} has no arch {arch!r}: arch must be '
                f'one of {", ".join(self.arch_zoo)}, or a dict'
            )
        return self.arch_zoo[arch] if isinstance(arch, str) else arch

    def choose_outputs(
        self, out_indices: int | Sequence[int], number: int, least: int = 0
    ) -> list[int]:
        """Which of a number of stages are handed out, in order.

        From -1 down to ``least``, they count from the last one.
        """
        if isinstance(out_indices, int):
            out_indices = [out_indices]
        indices = {i % number for i in out_indices if least <= i < number}
        if not 0 < len(indices) == len(out_indices):
            raise ValueError(
                f'out_indices must be one or more of {least}..{number - 1}, '
                f'each once, as there are {number} {self.unit}, but are '
                f'{list(out_indices)}'
            )
        return sorted(indices)

    def choose_frozen(
        self, frozen_stages: int, norm_eval: bool, number: int
    ) -> None:
        """Freeze this many of a number of stages, and batch norms or not."""
        if not -1 <= frozen_stages <= number:
            raise ValueError(
                f'frozen_stages must be in -1..{number}, the number of '
                f'{self.unit}, but is {frozen_stages}'
            )
        self.frozen_stages = frozen_stages
        self.norm_eval = norm_eval

    @property
    @abstractmethod
    def thins(self) -> bool:
        """Whether any part of it works on fewer tokens than there are."""

    @abstractmethod
    def frozen_parts(self) -> Iterable[nn.Module | nn.Parameter]:
        """What does not learn if ``frozen_stages`` are 0 or more."""

    def freeze(self) -> None:
        """Have the frozen parts neither learn nor change."""
        if self.frozen_stages < 0:
            return
        for part in self.frozen_parts():
            part.requires_grad_(False)
            if isinstance(part, nn.Module):
                part.eval()

    def train(self, mode: bool = True) -> 'Backbone':
        """Switch the mode of what is not frozen."""
        super().train(mode)
        self.freeze()
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self
