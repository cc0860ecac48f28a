import pytest
import torch
import torch.nn.functional as F

from clustr_mm.backbones.hvt import HVT
from tests.test_backbones.vit_cases import (
    SMALL,
    build,
    giga_macs,
    golden,
    images,
    logits,
    on_meta,
    part,
)


@pytest.mark.parametrize('stages', [1, 3])
def test_same_as_published(stages):
    record, img, state_dict = golden(f'hvt_m{stages}')
    config = record['config']
    model = HVT(
        config['arch'],
        num_stages=stages,
        img_size=config['img_size'],
        patch_size=config['patch_size'],
    ).eval()
    model.load_state_dict(part(state_dict, 'backbone'))
    with torch.no_grad():
        (x,) = model(img)
    torch.testing.assert_close(
        logits(x, state_dict), record['logits'], rtol=0, atol=1e-5
    )


# Tables 1 and 3 to 9. Parameters of all but the first seven rows are those of
# 100 classes, but all costs are those of 1000.
ROWS = [
    ('ti-1', {}, 0.64, 5.74, 1000),
    ('scale-ti-4', {}, 1.39, 22.12, 1000),
    ('s-0', {}, 4.57, 22.05, 1000),
    ('s-1', {}, 2.40, 22.09, 1000),
    ('s-2', {}, 1.94, 22.11, 1000),
    ('s-3', {}, 1.62, 22.11, 1000),
    ('s-4', {}, 1.39, 22.12, 1000),
    ('s-0', {}, 4.57, 21.70, 100),
    ('s-1', {}, 2.40, 21.74, 100),
    ('s-2', {}, 1.94, 21.76, 100),
    ('s-3', {}, 1.62, 21.77, 100),
    ('s-4', {}, 1.39, 21.77, 100),
    ('s-4-conv', {}, 1.47, 23.54, 100),
    ('s-4-avg', {}, 1.39, 21.77, 100),
    ('s-4-depth16', {}, 1.72, 28.87, 100),
    ('s-4-depth20', {}, 2.05, 35.97, 100),
    ('s-4-depth24', {}, 2.37, 43.07, 100),
    ('s-4-heads3', {}, 0.38, 5.58, 100),
    ('s-4-heads12', {}, 5.34, 86.01, 100),
    ('s-4-heads16', {}, 9.39, 152.43, 100),
    ('s-4', {'img_size': 160}, 0.69, 21.70, 100),
    ('s-4', {'img_size': 320}, 3.00, 21.92, 100),
    ('s-4', {'img_size': 384}, 4.48, 22.06, 100),
    ('s-4-patch8', {}, 6.18, 21.99, 100),
    ('s-4-patch32', {}, 0.37, 22.55, 100),
    ('s-2-2d', {}, 4.62, 21.80, 100),
]


@pytest.mark.parametrize(('arch', 'kwargs', 'giga', 'mega', 'classes'), ROWS)
def test_costs(arch, kwargs, giga, mega, classes):
    model = on_meta(HVT, arch, **kwargs)
    macs = giga_macs(model, kwargs.get('img_size', 224))
    assert round(macs + model.embed_dims * 1000 / 1e9, 2) == giga
    params = sum(p.numel() for p in model.parameters())
    params += (model.embed_dims + 1) * classes
    assert params / 1e6 == pytest.approx(mega, abs=0.02)


def test_every_preset_is_in_a_table():
    assert {row[0] for row in ROWS} == set(HVT.arch_zoo)


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


def test_own_places():
    model = HVT(**SMALL, reduce_at=[2, 5])
    assert model._reducer_at == {2: 0, 5: 1}


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
