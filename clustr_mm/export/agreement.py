"""Whether an ONNX file answers like the model that it was made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clustr_mm.errors import UserError

# Largest difference of an output, as a share of the largest output where
# that is more than 1.
TOLERANCE = 1e-3
NUM_IMAGES = 16  # that the answers must agree on
NUM_THREADS = 4  # what threads do to each other shows in several only
# Share of an image's values, ten times what ONNX Runtime and torch differ by
# inside a network, and how often an image is changed by it.
NOISE = 1e-5
NUM_CHANGES = 32


class Comparison(NamedTuple):
    """How answers to some images compare with a model's."""

    difference: Tensor  # [N] of each image the largest, see `TOLERANCE`
    same_class: Tensor  # [N] whether top-1 is the same, or has no meaning

    @property
    def agrees(self) -> Tensor:
        """Whether [N] an answer is as good as the model's."""
        return (self.difference <= TOLERANCE) & self.same_class


class Agreement(NamedTuple):
    """On how many random images a file agrees with its model."""

    num_images: int
    difference: float  # the largest of these images
    num_undecided: int  # more images, where a rounding error decides


class OnnxModel:
    """An ONNX file that answers like a module."""

    def __init__(self, path: str | Path):
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = NUM_THREADS
        self.session = onnxruntime.InferenceSession(
            path, options, providers=['CPUExecutionProvider']
        )

    def __call__(self, images: Tensor) -> list[Tensor]:
        found = self.session.run(None, {'images': images.numpy()})
        return list(map(torch.from_numpy, found))


def compare(
    model: nn.Module, onnx: OnnxModel, images: Tensor, batch_size: int = 1
) -> Comparison:
    """Compare the answers of a file with a model's."""
    found = [
        _compare(model, some, onnx(some)) for some in images.split(batch_size)
    ]
    return Comparison(*map(torch.cat, zip(*found)))


def check(
    model: nn.Module, path: Path, shape: tuple[int, int], batch_size: int
) -> Agreement:
    """Find random images that file and model agree on, or raise an error.

    A clustering or a choice of tokens takes steps. Next to one, a rounding
    error decides, and neither torch's answer nor ONNX Runtime's is better.
    Such an image does not count, but nor may the file answer it as torch
    never does.
    """
    onnx, generator = OnnxModel(path), torch.Generator()
    num_images, num_undecided, difference = 0, 0, 0.0
    while num_images < NUM_IMAGES:
        images = torch.randn(batch_size, 3, *shape, generator=generator)
        outputs = onnx(images)
        found = _compare(model, images, outputs)
        for i in (~found.agrees).nonzero().flatten():
            own = [output[i : i + 1] for output in outputs]
            if not _torch_may_say(own, model, images[i : i + 1]):
                raise UserError(_disagreement(found))
        num_images += int(found.agrees.sum())
        num_undecided += int((~found.agrees).sum())
        if num_undecided > NUM_IMAGES:
            raise UserError(
                f'rounding errors decide what torch answers to '
                f'{num_undecided} of {num_images + num_undecided} random '
                'images, so that an exported model cannot be compared with it'
            )
        agreed = found.difference[found.agrees].tolist()
        difference = max([difference, *agreed])
    return Agreement(num_images, difference, num_undecided)


def _compare(
    model: nn.Module, images: Tensor, found: Sequence[Tensor]
) -> Comparison:
    with torch.no_grad():
        expected = model(images)
    for one, other in zip(expected, found, strict=True):
        if one.shape != other.shape:
            raise UserError(
                f'ONNX Runtime answers {list(other.shape)}, but torch '
                f'{list(one.shape)}'
            )
    difference = torch.stack(list(map(_difference, expected, found)))
    same_class = torch.ones(len(images), dtype=torch.bool)
    if model.is_classifier:
        same_class = expected[0].argmax(1) == found[0].argmax(1)
    return Comparison(difference.amax(0), same_class)


def _difference(expected: Tensor, found: Tensor) -> Tensor:
    largest = expected.abs().flatten(1).amax(1).clamp_min(1)
    difference = (expected - found).abs().flatten(1).amax(1) / largest
    # Not a number compares with nothing.
    return difference.nan_to_num(torch.inf, torch.inf)


def _torch_may_say(
    outputs: Sequence[Tensor], model: nn.Module, image: Tensor
) -> bool:
    """Whether the model says so of the image changed in its last digits."""
    generator = torch.Generator()
    for _ in range(NUM_CHANGES):
        noise = torch.randn(image.shape, generator=generator)
        changed = image * (1 + NOISE * noise)
        if _compare(model, changed, outputs).agrees.all():
            return True
    return False


def _disagreement(found: Comparison) -> str:
    same = int(found.same_class.sum())
    return (
        f'the exported model differs from torch by up to '
        f'{found.difference.max():.2g} (at most {TOLERANCE:g} is allowed) and '
        f'agrees on the class of {same} of {len(found.same_class)} random '
        'images'
    )
