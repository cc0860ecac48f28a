"""Pictures of a classifier's predictions, in the folders of their classes."""

from pathlib import Path

from mmpretrain.engine.hooks import VisualizationHook

from clustr_mm.registry import HOOKS


@HOOKS.register_module()
class ClassFoldersHook(VisualizationHook):
    """MMPretrain's hook, for pictures that share a name in several folders.

    It writes all to one folder, where the last of them would remain.
    """

    def _draw_samples(
        self, batch_idx: int, data_batch: dict, data_samples, step: int = 0
    ) -> None:
        root, images = self.out_dir, data_batch['inputs']
        for i, sample in enumerate(data_samples):
            folder = Path(sample.get('img_path', '')).parent.name
            self.out_dir = root and str(Path(root, folder))
            super()._draw_samples(
                batch_idx * len(data_samples) + i,
                dict(inputs=images[i : i + 1]),
                [sample],
                step,
            )
        self.out_dir = root
