import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounter

from clustr_mm.backbones.hvt import HVT
from clustr_mm.backbones.vit import vit_arch
from tests.recorded import golden, logits, on_meta, rebuild
from tests.tiny_models import SMALL, build, images
from tests.torch_features import one_graph


@pytest.mark.parametrize('stages', [1, 3])
def test_same_as_published(stages):
    record, img, state_dict = golden(f'hvt_m{stages}')
    model = rebuild(HVT, record, state_dict, num_stages=stages)
    with torch.no_grad():
        (x,) = model(img)
    torch.testing.assert_close(
        logits(x, state_dict), record['logits'], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(
    ('arch', 'lengths'),
    [('s-4', [97, 48, 23, 11]), ('s-2-2d', [14 * 14, 7 * 7]), ('s-0', [])],
)
def test_lengths(arch, lengths):
    model = on_meta(HVT, arch)
    assert [pool.pos_embed.shape[1] for pool in model.reducers] == lengths


def test_stages_are_the_equations():
    """Eq. 5, block by block."""
    model = build('hvt', out_type='raw', num_stages=2)
    with torch.no_grad():
        x, _ = model.embed(images(), track=False)
        for i, block in enumerate(model.blocks):
            x = block(x)
            if i in (0, 3):
                pool = model.reducers[i // 3]
                x = F.max_pool1d(x.mT, 3, 2).mT + pool.pos_embed
        torch.testing.assert_close(model(images())[0], model.norm(x))
        model.out_type = 'avg_featmap'
        torch.testing.assert_close(model(images())[0], model.norm(x).mean(1))
        model.out_type = 'featmap'
        fmap = F.interpolate(model.norm(x).mT, size=64, mode='linear')
        torch.testing.assert_close(
            model(images())[0], fmap.unflatten(2, (8, 8))
        )


@pytest.mark.parametrize('op', ['max', 'avg', 'conv'])
@pytest.mark.parametrize('dims', [1, 2])
def test_ops(op, dims):
    model = build('hvt', op=op, dims=dims, num_stages=1, out_type='raw')
    assert model(images())[0].shape == (2, 31 if dims == 1 else 16, 48)


@one_graph
@pytest.mark.parametrize('op', ['max', 'avg', 'conv'])
def test_compiles_once_for_all_sizes(op):
    model = build('hvt', arch=vit_arch(16, 2, 1), num_stages=2, op=op)
    torch._dynamo.reset()
    # Only the capture is of interest, not the code.
    counter = CompileCounter()
    graph = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    for height, width in (64, 80), (96, 48), (112, 160), (40, 64):
        img = images(2, height, width)
        with torch.no_grad():
            torch.testing.assert_close(graph(img), model(img))
    assert counter.frame_count == 1


def test_own_places():
    model = HVT(**SMALL, reduce_at=[2, 5])
    assert [pool.block for pool in model.reducers] == [2, 5]


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'num_stages': 7}, 'from 0 to 6'),
        ({'op': 'min'}, "not 'min'"),
        ({'dims': 3}, 'dims must be 1 or 2'),
        ({'with_cls_token': True}, 'no class token'),
        ({'out_type': 'cls_token'}, 'needs a class token'),
        ({'reduce_at': [6]}, 'numbered 0 to 5'),
    ],
)
def test_bad_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        HVT(**SMALL, **kwargs)
