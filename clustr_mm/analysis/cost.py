"""Parameters and multiply-accumulates of a model, counted by running it.

Every operator that runs is seen, whatever Python or C++ called it, and counted
by the shapes of its tensors: matrix products, convolutions, fused attention,
distances, sums by index and pooling. Element-wise arithmetic and norms are not
counted, as is the custom.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from clustr_mm.tokens.kmeans import all_iterations
from .table import format_table

KINDS = {
    'layers': 'convolutions and linear layers',
    'attention': 'attention products',
    'clustering': 'clustering and selection',
    'rest': 'pooling and other products',
}
# What most papers count. A backbone whose paper does otherwise has other
# `paper_kinds`.
USUAL_KINDS = ('layers', 'attention', 'clustering')

# What a plain function in here multiplies is clustering.
_CLUSTERING_PACKAGE = 'clustr_mm.tokens'
_ATTENTION_NAMES = ('attention', 'attn', 'msa')


@dataclass
class ModuleCost:
    """Cost of a part of a model."""

    params: int = 0
    macs: Counter = field(default_factory=Counter)  # by kind
    # Tokens, or places of the map, that it passes on; None if neither.
    tokens: int | None = None
    finished: int = 0  # after how many other modules

    def __iadd__(self, other: 'ModuleCost') -> 'ModuleCost':
        self.params += other.params
        self.macs.update(other.macs)
        if other.finished >= self.finished and other.tokens is not None:
            self.tokens, self.finished = other.tokens, other.finished
        return self

    def total(self, kinds: Iterable[str] = KINDS) -> int:
        return sum(self.macs[kind] for kind in kinds)


@dataclass
class Cost:
    """Cost of a model.

    Attributes:
        modules: Cost of each module by name, that of its children excluded,
            in the order in which they first ran.
        paper_kinds: What a paper on the model's backbone would count.
        uncounted: Types of modules that ran compiled operators of mmcv,
            which are not counted.
    """

    modules: dict[str, ModuleCost]
    paper_kinds: tuple[str, ...] = USUAL_KINDS
    uncounted: tuple[str, ...] = ()

    @property
    def params(self) -> int:
        return self.part('').params

    @property
    def macs(self) -> int:
        """All that was counted."""
        return self.part('').total()

    @property
    def paper_macs(self) -> int:
        return self.part('').total(self.paper_kinds)

    def by_kind(self) -> dict[str, int]:
        macs = self.part('').macs
        return {kind: macs[kind] for kind in KINDS}

    def part(self, prefix: str) -> ModuleCost:
        """Cost of the module of this name, its children included."""
        return self.grouped(
            lambda name: (
                ''
                if not prefix or f'{name}.'.startswith(f'{prefix}.')
                else None
            )
        ).get('', ModuleCost())

    def by_block(self) -> dict[str, ModuleCost]:
        """Cost of each stage or block of the backbone, and of other parts.

        ``backbone.blocks.3.attn.qkv`` is a part of ``backbone.blocks.3``,
        ``backbone.patch_embed.proj`` of ``backbone.patch_embed``, and
        ``neck.convs.0`` of ``neck``.
        """
        prefix = 'backbone.' if 'backbone' in self.modules else ''

        def block_of(name: str) -> str:
            if not name.startswith(prefix):
                return name.split('.')[0]
            parts = name.removeprefix(prefix).split('.')
            numbers = [i for i, part in enumerate(parts) if part.isdigit()]
            return prefix + '.'.join(parts[: numbers[0] + 1 if numbers else 1])

        blocks = {}
        for name, part in self.grouped(block_of).items():
            if not name.startswith(prefix):
                part.tokens = None  # heads pass on no tokens, and necks many
            if part.params or part.total():
                blocks[name] = part
        return blocks

    def grouped(
        self, group_of: Callable[[str], str | None]
    ) -> dict[str, ModuleCost]:
        """Cost of groups of modules; those of group None are left out."""
        groups = {}
        for name, cost in self.modules.items():
            group = group_of(name)
            if group is not None:
                groups.setdefault(group, ModuleCost())
                groups[group] += cost
        return groups


@torch.no_grad()
def count_macs(model: Callable, *args, **kwargs) -> Cost:
    """Run ``model(*args, **kwargs)`` and count.

    Args:
        model (nn.Module | Callable): A model, which runs in eval mode, or any
            function of tensors. A compiled model has to be counted before it
            is compiled.
        args: Its inputs. A single tuple of integers stands for a random
            tensor of that shape.
        kwargs: More of its inputs.
    """
    if len(args) == 1 and _is_shape(args[0]):
        args = (torch.randn(args[0]),)
    module = model if isinstance(model, nn.Module) else nn.Module()
    package = getattr(model, '__module__', None) or ''
    is_clustering = package.startswith(_CLUSTERING_PACKAGE)
    counter = _Counter(module, 'clustering' if is_clustering else None)
    modes = {part: part.training for part in module.modules()}
    module.eval()
    try:
        with counter.watching(), _Unfused(), all_iterations(), counter:
            model(*args, **kwargs)
    finally:
        for part, mode in modes.items():
            part.training = mode
    return counter.cost()


def _is_shape(value) -> bool:
    return isinstance(value, Sequence) and all(
        isinstance(number, int) for number in value
    )


class _Unfused(TorchFunctionMode):
    """Does nothing, but wherever there is such a mode, PyTorch's transformer
    layers leave out their fused kernels, inside of which products hide.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class _Counter(TorchDispatchMode):
    """Counts the operators that run, each for the module that runs it.

    A module whose products are of another kind than its name suggests says so
    by ``counts_as``, one of `KINDS`.
    """

    def __init__(self, model: nn.Module, counts_as: str | None = None):
        super().__init__()
        self.model = model
        self.counts_as = counts_as
        self.names = {module: name for name, module in model.named_modules()}
        self.weights = {_storage(param) for param in model.parameters()}
        self.running: list[nn.Module] = []
        self.num_finished = 0
        self.modules: dict[str, ModuleCost] = {}
        self.uncounted: dict[str, None] = {}

    @contextmanager
    def watching(self):
        """Watch which module runs."""
        hooks = [
            register_module_forward_pre_hook(self._start),
            register_module_forward_hook(self._finish),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def cost(self) -> Cost:
        for name, param in self.model.named_parameters():
            self._of(name.rpartition('.')[0]).params += param.numel()
        kinds = USUAL_KINDS
        for module in self.names:
            kinds = getattr(module, 'paper_kinds', kinds)
        return Cost(self.modules, kinds, tuple(self.uncounted))

    def _start(self, module: nn.Module, inputs):
        self.running.append(module)
        if type(module).__module__.startswith('mmcv.ops'):
            self.uncounted[type(module).__name__] = None
        self._of(self._running_name())

    def _finish(self, module: nn.Module, inputs, output):
        cost = self._of(self._running_name())
        self.running.pop()
        self.num_finished += 1
        tokens = _num_tokens(output)
        if tokens is not None:
            cost.tokens, cost.finished = tokens, self.num_finished

    def _running_name(self) -> str:
        """Name of the innermost module of the model that is running."""
        known = (self.names.get(module) for module in reversed(self.running))
        return next((name for name in known if name is not None), '')

    def _of(self, name: str) -> ModuleCost:
        return self.modules.setdefault(name, ModuleCost())

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with self:
            # Composite operators arrive whole in inference mode.
            out = func.decompose(*args, **kwargs)
        if out is not NotImplemented:
            return out
        out = func(*args, **kwargs)
        operator = func._schema.name.removeprefix('aten::')
        macs = _macs(operator, args, out)
        if macs:
            kind = self._kind(operator, args)
            self._of(self._running_name()).macs[kind] += macs
        return out

    def _kind(self, operator: str, args: Sequence) -> str:
        factors = args[_FACTORS.get(operator, slice(0))]
        if any(_storage(factor) in self.weights for factor in factors):
            return 'layers'
        if operator in (*_DISTANCES, *_SUMS):
            return 'clustering'
        if operator.startswith(_ATTENTION):
            return 'attention'
        for module in (*reversed(self.running), self):
            if factors and getattr(module, 'counts_as', None):
                return module.counts_as
        if operator == 'convolution':
            return 'layers'
        classes = [type(module).__name__.lower() for module in self.running]
        if any(part in name for part in _ATTENTION_NAMES for name in classes):
            return 'attention'
        return 'rest'


def _storage(x: Tensor) -> int:
    """What a tensor shares with its views."""
    return x.untyped_storage().data_ptr()


def _num_tokens(output) -> int | None:
    """Number of tokens in [B, N, C] or of places in [B, C, H, W]."""
    if isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor) or output.dim() not in (3, 4):
        return None
    return output.shape[1] if output.dim() == 3 else output[0, 0].numel()


# Which arguments of a product are its factors.
_FACTORS = {
    'convolution': slice(2),
    **dict.fromkeys(('mm', 'bmm', 'mv', 'dot'), slice(2)),
    **dict.fromkeys(('addmm', 'baddbmm', 'addbmm', 'addmv'), slice(1, 3)),
    '_addmm_activation': slice(1, 3),
}
_DISTANCES = ('_cdist_forward', '_euclidean_dist')
# A sum multiplies nothing, but each of its numbers was weighted just before.
_SUMS = ('index_add', 'index_add_', 'scatter_add', 'scatter_add_')
_POOLS = ('max_pool2d_with_indices', 'avg_pool2d')
_ATTENTION = '_scaled_dot_product'


def _macs(operator: str, args: Sequence, out) -> int:
    """Multiply-accumulates of an operator of PyTorch."""
    if operator == 'convolution':
        x, weight, transposed = args[0], args[1], args[6]
        places = x if transposed else out
        return places.numel() * math.prod(weight.shape[1:])
    if operator in _FACTORS:
        left, right = args[_FACTORS[operator]]
        return left.numel() * (right.shape[-1] if right.dim() > 1 else 1)
    if operator.startswith(_ATTENTION):
        # Queries times keys, and that times values.
        query, key, value = args[:3]
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        return pairs * (query.shape[-1] + value.shape[-1])
    if operator in _DISTANCES:
        return args[0].numel() * args[1].shape[-2]
    if operator in _SUMS:
        return args[3].numel()
    if operator in _POOLS:
        out = out[0] if isinstance(out, tuple) else out
        side = args[1] if len(args[1]) == 2 else 2 * args[1]
        return out.numel() * math.prod(side)
    return args[0].numel() if operator == '_adaptive_avg_pool2d' else 0


def format_cost(cost: Cost) -> str:
    """A table of a model's cost, block by block."""
    blocks, totals = cost.by_block(), {'all': cost.part('')}
    if 'backbone' in cost.modules:
        totals = {'backbone': cost.part('backbone'), **totals}
        if 'backbone' in blocks:
            # Its own parameters, such as position embeddings.
            blocks['backbone itself'] = blocks.pop('backbone')
    kinds = [kind for kind in KINDS if cost.by_kind()[kind]]

    def row(name: str, part: ModuleCost) -> list:
        macs = [part.total([kind]) for kind in kinds] + [part.total()]
        return [
            name or 'itself',
            f'{part.params / 1e6:.3f}',
            *(f'{number / 1e9:.3f}' for number in macs),
            part.tokens,
        ]

    rows = [row(name, part) for name, part in blocks.items()]
    rows += [row(name, part)[:-1] + [None] for name, part in totals.items()]
    head = ['', 'params M', *(f'{k} G' for k in kinds), 'all G', 'tokens']
    lines = [format_table(head, rows, len(blocks)), '']
    counted = ', '.join(KINDS[k] for k in kinds if k in cost.paper_kinds)
    lines.append(
        f'{cost.paper_macs / 1e9:.3f} G multiply-accumulates as a paper '
        f'counts ({counted})'
    )
    if cost.uncounted:
        lines.append(f'Not counted: {", ".join(cost.uncounted)}')
    return '\n'.join(lines)


def cost_as_dict(cost: Cost) -> dict:
    """The same for a JSON file, in single parameters and operations."""

    def part(found: ModuleCost) -> dict:
        macs = {kind: found.macs[kind] for kind in KINDS}
        return dict(
            params=found.params,
            macs={**macs, 'all': found.total()},
            tokens=found.tokens,
        )

    return dict(
        params=cost.params,
        macs={**cost.by_kind(), 'all': cost.macs, 'paper': cost.paper_macs},
        paper_kinds=cost.paper_kinds,
        uncounted=cost.uncounted,
        backbone=part(
            cost.part('backbone' if 'backbone' in cost.modules else '')
        ),
        blocks={name: part(found) for name, found in cost.by_block().items()},
    )
