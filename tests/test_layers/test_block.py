import pytest
import torch

from clustr_mm.layers.block import Block


@pytest.mark.parametrize(
    ('rate', 'halves'),
    [
        ('drop_rate', [True, True]),
        ('attn_drop_rate', [True, False]),
        ('drop_path_rate', [True, True]),
    ],
)
def test_each_rate_drops_where_it_should(rate, halves):
    block = Block(8, 2, 16, **{rate: 0.5})
    x = torch.randn(16, 5, 8)

    def draws():
        return [
            not torch.equal(half(x), half(x))
            for half in (lambda x: block.attend(x)[0], block.feed)
        ]

    assert draws() == halves
    block.eval()
    assert draws() == [False, False]


def test_layer_scales_begin_at_their_value():
    block = Block(8, 2, 16, layer_scale_init_value=0.25)
    for scale in block.ls1, block.ls2:
        assert torch.equal(scale.weight, torch.full((8,), 0.25))
