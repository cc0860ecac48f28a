"""Pictures of the tokens while a model is trained."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from mmengine.device import get_device
from mmengine.dist import is_main_process, master_only
from mmengine.hooks import Hook
from mmengine.model import revert_sync_batchnorm
from mmengine.runner import EpochBasedTrainLoop, Runner
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from clustr_mm.registry import HOOKS, MODELS
from clustr_mm.wrappers import unwrapped
from .follow import find_backbone
from .picture import draw_tokens


@HOOKS.register_module()
class TokenVisualizationHook(Hook):
    """Draw what happens to the tokens of the first validation images.

    The pictures go to all backends of the runner's visualizer: files,
    TensorBoard and what else there is.

    Args:
        interval (int): Draw at every so many validations, and at the last.
        num_images (int): How many images.
        side (int): Longer side of each picture on a sheet.
        point (tuple[float, float], optional): Whose cluster is highlighted;
            see :func:`draw`.
    """

    priority = 'LOW'

    def __init__(
        self,
        interval: int = 1,
        num_images: int = 4,
        side: int = 400,
        point: tuple[float, float] | None = None,
    ):
        if interval < 1 or num_images < 1:
            raise ValueError(
                'interval and num_images must be 1 or more, but are '
                f'{interval} and {num_images}'
            )
        self.interval, self.num_images = interval, num_images
        self.side, self.point = side, point
        self._is_training = False
        self._drawn = 0
        self._model: nn.Module | None = None

    def before_run(self, runner: Runner) -> None:
        # Rather now than after the first epoch.
        find_backbone(unwrapped(runner.model))

    def before_train(self, runner: Runner) -> None:
        self._is_training = True

    def before_val_epoch(self, runner: Runner) -> None:
        is_due = self._is_due(runner)
        self._drawn = 0 if is_due else self.num_images
        self._model = _in_one_piece(runner) if is_due else None

    def after_val_epoch(
        self, runner: Runner, metrics: dict[str, float] | None = None
    ) -> None:
        self._model = None

    @master_only
    def after_val_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: dict | None = None,
        outputs: Sequence | None = None,
    ) -> None:
        unit, step = self._progress(runner)[:2]
        missing = self.num_images - self._drawn
        images = data_batch['inputs'][:missing]
        for image, sample in zip(images, outputs):
            name = _name(sample)
            sheet, _ = draw_tokens(
                self._model,
                _as_array(image),
                [f'{name or "validation image"}, after {unit} {step}'],
                side=self.side,
                point=self.point,
            )
            tag = f'tokens_{self._drawn}' + (f'_{name}' if name else '')
            runner.visualizer.add_image(tag, sheet, step)
            self._drawn += 1

    def _is_due(self, runner: Runner) -> bool:
        """By the progress alone, so that a resumed run goes on alike."""
        if not self._is_training:
            return True
        _, done, end = self._progress(runner)
        interval = self.interval * runner.train_loop.val_interval
        return done % interval == 0 or done == end

    def _progress(self, runner: Runner) -> tuple[str, int, int]:
        """What is counted, how many are done, and how many will be."""
        if not self._is_training:
            # To ask the runner would build what only training needs.
            return 'epoch', 0, 0
        loop = runner.train_loop
        if isinstance(loop, EpochBasedTrainLoop):
            return 'epoch', loop.epoch, loop.max_epochs
        return 'iteration', loop.iter, loop.max_iters


def _in_one_piece(runner: Runner) -> nn.Module | None:
    """The model; of a sharded one a copy, in the main process alone.

    The shards answer only if all processes ask them.
    """
    if not isinstance(runner.model, FullyShardedDataParallel):
        return unwrapped(runner.model)
    weights = runner.strategy.model_state_dict()
    if not is_main_process():
        return None
    model = revert_sync_batchnorm(MODELS.build(runner.cfg.model))
    model.load_state_dict(weights)
    return model.to(get_device()).eval()


def _name(sample) -> str:
    """Name of a sample's file, or '' if it has none."""
    return Path(getattr(sample, 'img_path', None) or '').stem


def _as_array(image: Tensor) -> np.ndarray:
    """[H, W, 3] in uint8 of an image [3, H, W] from a loader."""
    image = image.permute(1, 2, 0).clamp(0, 255).byte()
    return image.cpu().numpy()
