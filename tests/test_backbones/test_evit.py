import pytest
import torch

from clustr_mm.backbones.evit import EViT
from tests.recorded import golden, logits, on_meta, rebuild
from tests.tiny_models import SMALL, build, images


@pytest.mark.parametrize('name', ['evit_fuse0', 'evit_fuse1'])
def test_same_as_published(name):
    record, img, state_dict = golden(name)
    model = rebuild(
        EViT,
        record,
        state_dict,
        keep=record['config']['keep_rate'],
        fuse=record['config']['fuse_token'],
    )
    with torch.no_grad():
        (x,), trail = model.trace(img)
    torch.testing.assert_close(
        logits(x, state_dict), record['logits'], rtol=0, atol=1e-5
    )
    assert len(trail.steps) == len(record['kept_indices'])
    for step, kept in zip(trail.steps, record['kept_indices'], strict=True):
        numbers = step.gather(1, kept)
        assert torch.equal(
            numbers, torch.arange(kept.shape[1]).expand_as(kept)
        )


def test_where_tokens_leave():
    """As in the paper: in the 4th, 7th and 10th block of 12."""
    model = on_meta(EViT, 'deit-small', keep=0.7)
    assert [reducer.block + 1 for reducer in model.reducers] == [4, 7, 10]


def test_fused_token_is_the_weighted_sum_of_the_rest():
    model = build('evit', keep=0.5, reduce_at=[0], out_type='raw')
    reducer = model.reducers[0]
    x, class_row = torch.randn(2, 9, 48), torch.rand(2, 9)
    from clustr_mm.tokens.trail import Trail

    out = reducer(x, Trail((3, 3)), class_row)
    for b in range(2):
        order = class_row[b].argsort(descending=True)
        rest = order[5:]
        fused = (class_row[b, rest, None] * x[b, rest]).sum(0)
        torch.testing.assert_close(out[b, :5], x[b, order[:5]])
        torch.testing.assert_close(out[b, 5], fused)


def test_class_row_is_the_class_token_s_attention():
    attn = build('evit').blocks[0].attn
    x = torch.randn(2, 10, 48)
    q, k, _ = attn.qkv(x).unflatten(2, (3, 3, 16)).permute(2, 0, 3, 1, 4)
    row = (q @ k.mT / 4).softmax(-1).mean(1)[:, 0]
    torch.testing.assert_close(attn(x, statistic='class_row')[1], row)


def test_patches_belong_to_themselves_or_the_fused_token():
    model = build(
        'evit', keep=[1, 0.5, 1, 1, 1, 1], out_type='featmap', detail=False
    )
    with torch.no_grad():
        (fmap,), trail = model.trace(images())
    owners = trail.owners(2)
    assert owners.sort(1).values[0].tolist() == [*range(32), *[32] * 32]
    fused = fmap.flatten(2)[0][:, owners[0] == 32]
    assert torch.equal(fused, fused[:, :1].expand_as(fused))


@pytest.mark.parametrize('fuse', [True, False])
def test_keep_nothing(fuse):
    kwargs = {'keep': [1, 0, 1, 1, 0, 1], 'fuse': fuse}
    raw = build('evit', out_type='raw', **kwargs)(images())[0]
    assert raw.shape == (2, 1 + fuse, 48)
    fmap = build('evit', out_type='featmap', **kwargs)(images())[0]
    assert fmap.shape == (2, 48, 8, 8)


def test_schedule():
    """The keep rate of a built model can be changed."""
    model = build('evit', keep=0.5, out_type='raw')
    for reducer in model.reducers:
        reducer.keep = 1.0
    assert model(images())[0].shape[1] == 65


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'keep': [0.5] * 5}, '5 entries'),
        ({'keep': [1, 1, 1, 1.5, 1, 1]}, 'from 0 to 1, not 1.5'),
        ({'keep': -0.1}, 'from 0 to 1'),
        ({'reduce_at': [6]}, 'numbered 0 to 5'),
        ({'with_cls_token': False, 'out_type': 'raw'}, 'class token'),
    ],
)
def test_bad_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        EViT(**SMALL, **kwargs)
