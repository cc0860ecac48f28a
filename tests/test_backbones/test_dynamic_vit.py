import pytest
import torch

from clustr_mm.backbones.dynamic_vit import (
    DynamicViT,
    PredictedTokens,
    Predictor,
)
from clustr_mm.layers.attention import Attention
from tests.recorded import giga_macs, golden, logits, on_meta, rebuild
from tests.tiny_models import SMALL, build, images


def test_same_as_published():
    record, img, state_dict = golden('dynamicvit')
    model = rebuild(
        DynamicViT,
        record,
        state_dict,
        keep=record['config']['token_ratio'],
        reduce_at=record['config']['pruning_loc'],
    )
    with torch.no_grad():
        (x,) = model(img)
    torch.testing.assert_close(
        logits(x, state_dict), record['logits'], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize('arch', ['deit-tiny', 'deit-256', 'deit-base'])
def test_other_trunks(arch):
    model = on_meta(DynamicViT, arch, keep=0.7)
    dense = on_meta(DynamicViT, arch, keep=1.0)
    assert 0.6 < giga_macs(model) / giga_macs(dense) < 0.66


def test_keeps_shares_of_all_patches():
    model = build('dynamicvit', keep=[0.7, 0.49, 0.343], out_type='raw')
    with torch.no_grad():
        (raw,), trail = model.trace(images())
    # int(64 * share) tokens, and the class token
    assert raw.shape[1] == 1 + 21
    assert [step.shape[1] for step in trail.steps] == [64, 44, 31]


def test_what_left_keeps_its_value():
    """A token that left early skipped the blocks, not the last norm."""
    model = build('dynamicvit', keep=[0.5], reduce_at=[0], out_type='featmap')
    img = images()
    with torch.no_grad():
        (fmap,), trail = model.trace(img)
        x, _ = model.embed(img, track=False)
        start = model.norm(x[:, 1:])
    left = trail.owners(2) >= 32
    assert left.sum(1).tolist() == [32, 32]
    fmap = fmap.flatten(2).mT
    torch.testing.assert_close(fmap[left], start[left])
    assert not torch.isclose(fmap[~left], start[~left]).all(1).any()


def test_predictor_looks_at_what_is_left():
    """The global features are those of the tokens in the policy."""
    predictor = Predictor(48).eval()
    x, kept = torch.randn(2, 9, 48), torch.tensor([0, 3, 4, 7])
    policy = torch.zeros(2, 9)
    policy[:, kept] = 1
    torch.testing.assert_close(
        predictor(x, policy)[:, kept], predictor(x[:, kept])
    )
    assert predictor(x).exp().sum(-1).allclose(torch.ones(2, 9))


def test_policy_attention_ignores_what_would_leave():
    """Trained with a policy, a model predicts what it does without them."""
    attn = Attention(48, 3)
    x, kept = torch.randn(2, 9, 48), torch.tensor([0, 3, 4, 7])
    policy = torch.zeros(2, 9)
    policy[:, kept] = 1
    masked, _ = attn(x, policy=policy)
    alone, _ = attn(x[:, kept])
    torch.testing.assert_close(masked[:, kept], alone, rtol=1e-4, atol=1e-5)
    everyone, _ = attn(x, policy=torch.ones(2, 9))
    torch.testing.assert_close(everyone, attn(x)[0], rtol=1e-4, atol=1e-5)


def in_training(model):
    """Class token, patch tokens, and which of these stay in each stage."""
    x, trail = model.run(images())
    x = model.norm(x)
    return x[:, 0], x[:, 1:], trail.decisions


def test_training_forward():
    model = build('dynamicvit', keep=0.6).train()
    cls_token, x, decisions = in_training(model)
    assert cls_token.shape == (2, 48)
    assert x.shape == (2, 64, 48)
    assert len(decisions) == 3
    for before, after in zip(decisions, decisions[1:], strict=False):
        assert (after <= before).all()
    for decision in decisions:
        assert decision.shape == (2, 64)
        assert set(decision.unique().tolist()) <= {0.0, 1.0}
    # Both the ratio of a stage and what follows it teach its predictor.
    for loss in (decisions[1].mean(), cls_token.square().sum()):
        (grad,) = torch.autograd.grad(
            loss,
            model.reducers[1].predictor.score[0].weight,
            retain_graph=True,
        )
        assert grad.abs().max() > 0


def test_decisions_are_drawn_by_probability():
    model = build('dynamicvit', keep=0.6).train()
    predictor = model.reducers[0].predictor
    for parameter in predictor.parameters():
        torch.nn.init.zeros_(parameter)
    with torch.no_grad():
        predictor.score[4].bias.copy_(torch.tensor([0.25, 0.75]).log())
        draws = [in_training(model)[2][0] for _ in range(20)]
    assert torch.stack(draws).mean().item() == pytest.approx(0.25, abs=0.05)


@pytest.mark.parametrize('out_type', ['featmap', 'avg_featmap'])
@pytest.mark.parametrize('before', [[], ['AttentiveTokens']])
def test_training_sees_the_maps_of_the_test(out_type, before, monkeypatch):
    """If the predictors' best tokens are those that stay."""
    reducers = [dict(type=kind, block=0, keep=0.8) for kind in before]
    options = dict(out_type=out_type, keep=0.6, reducers=reducers)
    outs = {'out_indices': [0, 2, 5]} if out_type == 'featmap' else {}
    model = build('dynamicvit', **options, **outs)
    expected = model(images())

    def best(reducer, x, trail):
        still = (trail.decisions or [torch.ones(x.shape[:2])])[-1]
        scores = reducer.predictor(x, still)[..., 0]
        scores = scores.masked_fill(still == 0, -torch.inf)
        index = scores.topk(int(reducer.keep * trail.num_patches)).indices
        return torch.zeros_like(still).scatter(1, index, 1.0)

    monkeypatch.setattr(PredictedTokens, '_decide', best)
    model.train()
    for found, wanted in zip(model(images()), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_training_forward_of_a_downstream_task():
    """In training, maps still have all patches."""
    model = build('dynamicvit', out_type='featmap', out_indices=[1, 5]).train()
    outs = model(images(2, 24, 40))
    assert [out.shape for out in outs] == [(2, 48, 6, 10)] * 2


@pytest.mark.parametrize(
    ('keep', 'left'), [(0.0, 0), (1.0, 64), ([0.02, 0.01, 0.0], 0), (0.01, 1)]
)
def test_extremes(keep, left):
    raw = build('dynamicvit', keep=keep, out_type='raw')(images())[0]
    assert raw.shape == (2, 1 + left, 48)


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        ({'keep': [0.5, 0.7, 0.3]}, 'never more than before'),
        ({'keep': 1.2}, 'from 0 to 1'),
        ({'keep': [0.5, -0.1]}, 'from 1 to 0'),
        ({'keep': [0.9, 0.8, 0.7, 0.6]}, 'reduce_at where the 4 stages'),
        ({'keep': [0.9], 'reduce_at': [1, 2]}, '1 entries'),
        ({'reduce_at': [3, 2, 4]}, 'must increase'),
        ({'reduce_at': [4, 5, 6]}, 'numbered 0 to 5'),
    ],
)
def test_bad_settings(kwargs, message):
    with pytest.raises(ValueError, match=message):
        DynamicViT(**SMALL, **kwargs)
