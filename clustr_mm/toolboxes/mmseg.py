"""MMSegmentation: a class for each pixel."""

from mmengine.config import Config, ConfigDict

from clustr_mm import outputs
from clustr_mm.dependencies import Package
from .toolbox import Reduced, Toolbox


class MMSegmentation(Toolbox):
    scope = 'mmseg'
    package = Package(
        '1.2.2', '2.0.0', 'mmsegmentation', 'onedl-mmsegmentation'
    )
    usual_size = (512, 512)
    reduced = Reduced(
        'segmentation',
        'mIoU',
        num=40,
        size=96,
        batch=4,
        iters=30,
        sizes=dict(
            RandomResize=dict(scale=(96, 96)),
            Resize=dict(scale=(96, 96)),
            RandomCrop=dict(crop_size=(64, 64)),
            SegDataPreProcessor=dict(size=(64, 64)),
        ),
    )

    def draw_predictions(
        self, cfg: Config, hook: ConfigDict, folder: str | None
    ) -> None:
        hook.draw = True
        if folder is not None:
            cfg.visualizer.save_dir = folder

    def dump_predictions(self, cfg: Config, out: str) -> None:
        """A folder of label maps."""
        outputs.make_folder(out)
        cfg.test_evaluator.update(output_dir=out, keep_results=True)
