"""MMPretrain: classifiers."""

from mmengine.config import Config, ConfigDict

from clustr_mm import configs
from clustr_mm.dependencies import Package
from .toolbox import Reduced, Size, Toolbox


class MMPretrain(Toolbox):
    scope = 'mmpretrain'
    package = Package('1.2.0', '2.0.0', 'mmpretrain', 'onedl-mmpretrain')
    is_classifier = True
    reduced = Reduced(
        'classification',
        'accuracy/top1',
        num=100,
        size=64,
        batch=8,
        epochs=3,
        sizes=dict(
            RandomResizedCrop=dict(scale=64),
            ResizeEdge=dict(scale=72),
            CenterCrop=dict(crop_size=64),
            FreezeUntil=dict(epoch=1),
            KeepRateSchedule=dict(begin=0, end=2),
        ),
        names_classes=True,
    )

    def probe_size(self, cfg: Config) -> Size:
        return self.image_size(cfg)  # some models take no other

    def complete(self, cfg: Config) -> None:
        for name in ('train', 'val', 'test'):
            loader = cfg.get(f'{name}_dataloader')
            if loader is not None:
                loader.setdefault('pin_memory', True)
                loader.setdefault('persistent_workers', loader.num_workers > 0)
                loader.setdefault('collate_fn', dict(type='default_collate'))

    def draw_predictions(
        self, cfg: Config, hook: ConfigDict, folder: str | None
    ) -> None:
        super().draw_predictions(cfg, hook, folder)
        if folder is not None and hook.type == 'VisualizationHook':
            hook.type = 'ClassFoldersHook'
            configs.add_import(cfg, 'clustr_mm.visualization.by_class')
