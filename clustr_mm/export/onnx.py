"""Models as ONNX files that say what torch says.

A file is written only after ONNX Runtime has run it on random images and has
answered like torch.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread

import torch
from mmengine.config import Config
from torch import Tensor, nn

from clustr_mm.analysis.models import build_model
from clustr_mm.checkpoints.load import load_weights
from clustr_mm.configs import describe
from clustr_mm.errors import UserError
from clustr_mm.outputs import complete_file
from clustr_mm.toolboxes import toolbox_of
from .agreement import NUM_IMAGES, Agreement, check

PACKAGES = ('onnx', 'onnxscript', 'onnxruntime')
HEARTBEAT = 15  # seconds between signs of life


class Classifier(nn.Module):
    """Logits [B, K] of normalised images [B, 3, H, W]."""

    output_names = ('logits',)
    is_classifier = True

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor]:
        return (self.model(images, mode='tensor'),)


class Features(nn.Module):
    """What a backbone hands out for normalised images [B, 3, H, W]."""

    is_classifier = False

    def __init__(self, backbone: nn.Module):
        super().__init__()
        self.backbone = backbone
        self.output_names = [f'features_{i}' for i in backbone.out_indices]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.backbone(images))


def check_packages() -> None:
    """Raise an error that says what is missing for an export."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f'to export, {", ".join(PACKAGES)} are needed, but missing: '
            f'{", ".join(missing)}. Install with: pip install '
            f'{" ".join(missing)}'
        )
    _check_torch()


def load_model(
    cfg: Config, checkpoint: str | None, features: bool = False
) -> nn.Module:
    """The model of a config in the form that is exported.

    Args:
        cfg (Config): Config of any toolbox.
        checkpoint (str, optional): File or URL of the weights; None for
            random ones.
        features (bool): Whether the outputs are those of the backbone, or
            else logits, which only classifiers have.
    """
    is_classifier = toolbox_of(cfg).is_classifier and 'head' in cfg.model
    if not features and not is_classifier:
        raise UserError(
            f'{describe(cfg)} has no classification head; to export its '
            'backbone, give --features'
        )
    if features and 'backbone' not in cfg.model:
        raise UserError('this config has no backbone for --features')
    model = build_model(cfg)
    if checkpoint is not None:
        load_weights(model, checkpoint, 'backbone.' if features else '')
    return Features(model.backbone) if features else Classifier(model)


def trace(
    model: nn.Module, shape: tuple[int, int], dynamic_batch: bool = False
) -> torch.export.ExportedProgram:
    """Export a model by torch alone, for images of one shape.

    Args:
        model (nn.Module): Any of our models or backbones in eval mode.
        shape (tuple[int, int]): Height and width.
        dynamic_batch (bool): Whether any number of images will do, or one.
    """
    _check_torch()
    # Of one image, torch would conclude that there is always one.
    images = torch.zeros(2 if dynamic_batch else 1, 3, *shape)
    batch = {0: torch.export.Dim('batch')} if dynamic_batch else None
    with torch.no_grad():
        return torch.export.export(
            model, (images,), dynamic_shapes=(batch,), strict=False
        )


def export_onnx(
    model: Classifier | Features,
    out: str | Path,
    shape: tuple[int, int],
    dynamic_batch: bool = False,
    notes: dict[str, str] | None = None,
    say: Callable[[str], None] = print,
) -> Agreement:
    """Write a model to an ONNX file, which appears only if it is right.

    Args:
        model (Classifier | Features): Model in eval mode.
        out (str | Path): The file.
        shape (tuple[int, int]): Height and width of the images.
        dynamic_batch (bool): Whether any number of images will do, or one.
        notes (dict[str, str], optional): What the file's metadata shall say.
        say (Callable[[str], None]): Is told of the progress.
    """
    check_packages()
    with _complete(Path(out)) as part:
        with _step('tracing the model', say):
            program = trace(model, shape, dynamic_batch)
        with _step('translating it to ONNX', say):
            program = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                input_names=['images'],
                output_names=list(model.output_names),
                custom_translation_table=_translations(),
            )
        program.model.metadata_props.update(notes or {})
        program.save(part, external_data=False)
        with _step(f'comparing it on {NUM_IMAGES} random images', say):
            sizes = (1, 4) if dynamic_batch else (1,)
            try:
                found = [check(model, part, shape, size) for size in sizes]
            except UserError as error:
                raise UserError(f'{error}. {out} was not written') from None
    return Agreement(*map(max, zip(*found)))


def describe_input(cfg: Config) -> dict[str, str]:
    """How the images of a config's model are normalised."""
    normalise = cfg.model.get('data_preprocessor') or {}
    normalise = {**cfg.get('data_preprocessor', {}), **normalise}
    is_rgb = normalise.get('to_rgb') or normalise.get('bgr_to_rgb')
    return {
        'channels': 'RGB' if is_rgb else 'BGR',
        'mean': str(list(normalise.get('mean') or [0.0])),
        'std': str(list(normalise.get('std') or [1.0])),
    }


def _check_torch() -> None:
    if not hasattr(torch.compiler, 'is_exporting'):
        raise UserError(
            f'to export, torch 2.7 or newer is needed, but {torch.__version__}'
            ' is installed. Use another environment for it: it takes '
            'checkpoints of any version'
        )


def _translations() -> dict[Callable, Callable]:
    """What torch cannot say in ONNX by itself."""
    from onnxscript import opset18 as op

    def stable_sort(x, stable=None, dim=-1, descending=False):
        # TopK takes the first of equals first.
        size = op.Gather(op.Shape(x), op.Constant(value_ints=[dim]))
        return op.TopK(x, size, axis=dim, largest=int(descending))

    def index_add(x, dim, index, source, alpha=1):
        # Torch says ScatterND, whose summands ONNX Runtime's threads add to
        # the same place at once, and lose (its issue 18048).
        index = op.Unsqueeze(index, op.Constant(value_ints=[1]))
        index = op.Expand(index, op.Shape(source))
        return op.ScatterElements(x, index, source, axis=dim, reduction='add')

    return {
        torch.ops.aten.sort.stable: stable_sort,
        torch.ops.aten.index_add.default: index_add,
    }


@contextmanager
def _complete(out: Path) -> Iterator[Path]:
    """A file that takes the place of ``out`` once all has gone well."""
    if out.is_dir():
        raise UserError(f'{out} is a folder; give the name of a file')
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with complete_file(out) as part:
            part.touch()
            yield part
    except OSError as error:
        raise UserError(f'cannot write {out}: {error}') from error


@contextmanager
def _step(title: str, say: Callable[[str], None]) -> Iterator[None]:
    """Tell what is being done, again and again while it lasts."""
    began, done = time.time(), Event()

    def beat():
        while not done.wait(HEARTBEAT):
            say(f'  {time.time() - began:.0f} s')

    say(title)
    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
