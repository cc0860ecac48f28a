"""What a toolbox is asked for, and what a config of none of them answers."""

from dataclasses import dataclass, field

import torch
from mmengine.config import Config, ConfigDict

from clustr_mm import outputs
from clustr_mm.dependencies import Package, require
from clustr_mm.errors import UserError

Size = tuple[int, int]


@dataclass(frozen=True)
class Reduced:
    """A toolbox's task in little.

    Attributes:
        task: of the generated data.
        metric: what the test must report.
        num, size: of the pictures.
        batch, epochs: of the training, for configs that count epochs.
        iters: for configs that count iterations.
        lr: learning rate, of what learns fastest.
        sizes: new arguments of everything of a type, wherever it stands.
        options: others; those that a config does not have are left out.
        names_classes: whether data sets must be told the classes.
        counts_classes: whether all parts of a model have a num_classes.
    """

    task: str
    metric: str
    num: int
    size: int
    batch: int
    epochs: int = 0
    iters: int = 0
    lr: float = 1e-3
    sizes: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    names_classes: bool = False
    counts_classes: bool = False


class Toolbox:
    """A toolbox of OpenMMLab, as far as it differs from the others.

    Attributes:
        scope: its ``default_scope``, the name that it is imported by.
        package: its versions that work, and its names for pip.
        is_classifier: whether its models put out classes of whole images.
        usual_size: height and width where a config does not tell.
        mixed_parts: names of the parts of a model whose operators have a
            bfloat16 on a CPU; None if all have.
        counts_on_strides: whether heads compute with the strides of maps,
            and another one would go unnoticed.
        takes_many_necks: whether a neck may be a list.
        has_large_images: whether what grows with the square of their area
            is too much for them.
        reduced: what a small run overrides.
    """

    scope = 'mmengine'
    package: Package | None = None
    is_classifier = False
    usual_size: Size = (224, 224)
    mixed_parts: tuple[str, ...] | None = None
    counts_on_strides = False
    takes_many_necks = True
    has_large_images = False
    reduced: Reduced

    def require(self) -> None:
        """Raise an error that says what to install unless it is there."""
        if self.package is not None:
            require(self.scope, self.package)

    def image_size(self, cfg: Config) -> Size:
        """Height and width of the images that a config is made for."""
        codec = cfg.get('codec')  # of poses
        if isinstance(codec, dict) and 'input_size' in codec:
            return tuple(codec['input_size'][::-1])
        size = cfg.model.get('data_preprocessor', {}).get('size')
        if size is not None:
            return tuple(size)
        dataset = (cfg.get('test_dataloader') or {}).get('dataset', {})
        pipeline = dataset.get('pipeline') or cfg.get('test_pipeline', [])
        sizes = map(self._size_after, pipeline)
        return next(filter(None, sizes), self.usual_size)

    def _size_after(self, transform: dict) -> Size | None:
        """The size that a transform gives to all images, if it does."""
        if transform['type'] != 'CenterCrop':
            return None
        size = transform['crop_size']
        return (size, size) if isinstance(size, int) else tuple(size)

    def probe_size(self, cfg: Config) -> Size:
        """Height and width of an image to try a model on: a small one."""
        return (256, 256)

    def example_inputs(
        self, cfg: Config, batch: int, size: Size
    ) -> dict[str, torch.Tensor | list | None]:
        """What a config's model takes: random images and what it must know.

        Made for modes 'tensor' and 'predict' of a model's forward method.
        """
        images = torch.randn(batch, 3, *size)
        samples = [self._sample(cfg, size) for _ in range(batch)]
        known = samples if any(s is not None for s in samples) else None
        return dict(inputs=images, data_samples=known)

    def _sample(self, cfg: Config, size: Size):
        """What a model must know of an image besides its pixels."""

    def complete(self, cfg: Config) -> None:
        """Fill in what the toolbox leaves to its own scripts."""

    def draw_predictions(
        self, cfg: Config, hook: ConfigDict, folder: str | None
    ) -> None:
        """Have the hook that draws do so, into a folder if there is one."""
        hook.enable = True
        if folder is not None:
            hook.out_dir = folder

    def dump_predictions(self, cfg: Config, out: str) -> None:
        """Have a test write its predictions."""
        self._dump_pickle(cfg, out, 'DumpResults')

    def _dump_pickle(self, cfg: Config, out: str, metric: str) -> None:
        if not out.endswith(('.pkl', '.pickle')):
            raise UserError(f'--out must end with .pkl, but is {out}')
        outputs.check_file(out)
        evaluator = cfg.test_evaluator
        if not isinstance(evaluator, (list, tuple)):
            evaluator = [evaluator]
        cfg.test_evaluator = [
            *evaluator,
            dict(type=metric, out_file_path=out),
        ]
