"""HVT: scalable vision transformers with hierarchical pooling.

The first block of each stage is followed by pooling, which halves the
sequence, and by new position embeddings (eq. 5). There is no class token:
the mean of the last tokens is what a head sees (eq. 6).
"""

from collections.abc import Sequence

from clustr_mm.arguments import check_types
from clustr_mm.layers.pooling import TokenPool
from clustr_mm.registry import MODELS
from .vit import ThinViT, check_reduce_at, vit_arch

# Kernel, stride and padding. The sequence is pooled as in the paper; maps
# are halved exactly: 28 -> 14 -> 7 (table 9).
POOL = {1: (3, 2, 0), 2: (3, 2, 1)}


@MODELS.register_module()
class HVT(ThinViT):
    """Hierarchical vision transformer.

    Args:
        arch (str | dict): One of ``arch_zoo``, or a dict as in
            :class:`ThinViT` that may also hold ``num_stages``, ``op`` and
            ``dims``.
        num_stages (int, optional): Number of stages M, into which the blocks
            are split evenly. The first block of each is followed by pooling.
            By default what ``arch`` says, or 1.
        op (str, optional): Pool by ``'max'``, ``'avg'`` or ``'conv'``. By
            default what ``arch`` says, or ``'max'``.
        dims (int, optional): Pool the sequence (1) or the map (2). By
            default what ``arch`` says, or 1.
        reduce_at (Sequence[int], optional): Blocks to pool after, instead of
            the first of each stage.
        out_type (str): See :class:`ThinViT`. A map is interpolated from the
            pooled sequence.
        kwargs: More arguments of :class:`ThinViT`.
    """

    arch_zoo = {
        # Tables 1 and 4: stages.
        'ti-1': vit_arch(192, 12, 3, num_stages=1),
        'scale-ti-4': vit_arch(384, 12, 6, num_stages=4),
        's-0': vit_arch(384, 12, 6, num_stages=0),
        's-1': vit_arch(384, 12, 6, num_stages=1),
        's-2': vit_arch(384, 12, 6, num_stages=2),
        's-3': vit_arch(384, 12, 6, num_stages=3),
        's-4': vit_arch(384, 12, 6, num_stages=4),
        # Table 3: pooling.
        's-4-conv': vit_arch(384, 12, 6, num_stages=4, op='conv'),
        's-4-avg': vit_arch(384, 12, 6, num_stages=4, op='avg'),
        # Table 5: depth.
        's-4-depth16': vit_arch(384, 16, 6, num_stages=4),
        's-4-depth20': vit_arch(384, 20, 6, num_stages=4),
        's-4-depth24': vit_arch(384, 24, 6, num_stages=4),
        # Table 6: width.
        's-4-heads3': vit_arch(192, 12, 3, num_stages=4),
        's-4-heads12': vit_arch(768, 12, 12, num_stages=4),
        's-4-heads16': vit_arch(1024, 12, 16, num_stages=4),
        # Table 8: patches. Table 7 varies `img_size`.
        's-4-patch8': vit_arch(384, 12, 6, num_stages=4, patch_size=8),
        's-4-patch32': vit_arch(384, 12, 6, num_stages=4, patch_size=32),
        # Table 9: maps.
        's-2-2d': vit_arch(384, 12, 6, num_stages=2, dims=2, patch_size=8),
    }

    vector_options = {'out_type': 'avg_featmap'}
    # What the costs that the paper prints are made of: that its pooling is
    # counted shows at 160 x 160. See `clustr_mm.analysis.cost.KINDS`.
    paper_kinds = ('layers', 'attention', 'rest')

    @check_types
    def __init__(
        self,
        arch: str | dict = 's-1',
        num_stages: int | None = None,
        op: str | None = None,
        dims: int | None = None,
        reduce_at: Sequence[int] | None = None,
        out_type: str = 'avg_featmap',
        with_cls_token: bool = False,
        pool_norm: bool = False,
        **kwargs,
    ):
        super().__init__(
            arch,
            out_type=out_type,
            with_cls_token=with_cls_token,
            pool_norm=pool_norm,
            **kwargs,
        )
        if with_cls_token:
            raise ValueError('HVT has no class token')
        arch, depth = self.arch_settings, self.num_layers
        if num_stages is None:
            num_stages = arch.get('num_stages', 1)
        if not 0 <= num_stages <= depth:
            raise ValueError(
                f'num_stages must be from 0 to {depth}, the number of '
                f'blocks, not {num_stages}'
            )
        if reduce_at is None:
            reduce_at = [m * depth // num_stages for m in range(num_stages)]
        check_reduce_at(reduce_at, depth)
        dims = dims or arch.get('dims', 1)
        if dims not in POOL:
            raise ValueError(f'dims must be 1 or 2, not {dims!r}')
        op = op or arch.get('op', 'max')
        own = self._pools(reduce_at, op, dims)
        self.place_reducers([*own, *self.reducers])

    def _pools(
        self, reduce_at: Sequence[int], op: str, dims: int
    ) -> list[TokenPool]:
        """The pooling after each of these blocks."""
        pools, shape = [], None
        for block in reduce_at:
            pool = TokenPool(
                op,
                dims,
                *POOL[dims],
                shape=shape,
                block=block,
                embed_dims=self.embed_dims,
                grid=self.grid,
            )
            pools.append(pool)
            shape = pool.shape
        return pools
