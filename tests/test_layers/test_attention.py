"""Attention against its equations, and what it holds for the backward pass."""

import math

import pytest
import torch
import torch.nn.functional as F

from clustr_mm.layers import attention
from clustr_mm.layers.attention import Attention
from tests.torch_features import float16

BATCH, TOKENS, HEADS, DIMS = 2, 9, 3, 24


def probabilities(attn, x, bias=None, policy=None):
    """Of all queries and keys [B, heads, N, N]; DynamicViT's eqs. 10, 11."""
    q, k, _ = attn.qkv(x).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    logits = q @ k.mT / (DIMS // HEADS) ** 0.5
    if bias is not None:
        logits = logits + bias[:, None, None]
    if policy is None:
        return logits.softmax(-1)
    rows = []
    for i in range(x.shape[1]):
        visible = torch.cat(
            [
                policy[:, :i],
                torch.ones_like(policy[:, :1]),
                policy[:, i + 1 :],
            ],
            1,
        )
        row = logits[:, :, i]
        row = (row - row.amax(-1, keepdim=True)).exp() * visible[:, None]
        total = row.sum(-1, keepdim=True) + 1e-6
        rows.append((row + 1e-6 / x.shape[1]) / total)
    return torch.stack(rows, 2)


def by_hand(attn, x, **inputs):
    probs = probabilities(attn, x, **inputs)
    v = attn.qkv(x).unflatten(2, (3, HEADS, -1))[:, :, 2].transpose(1, 2)
    return attn.proj((probs @ v).transpose(1, 2).flatten(2))


def case(**inputs):
    """A layer and its inputs, those by name among some."""
    torch.manual_seed(0)
    attn = Attention(DIMS, HEADS)
    # Away from the small initial weights, with which all is alike.
    torch.nn.init.normal_(attn.qkv.weight, std=0.5)
    x = torch.randn(BATCH, TOKENS, DIMS, requires_grad=True)
    policy = torch.rand(BATCH, TOKENS).round()
    policy[:, 0] = 1
    drawn = dict(
        bias=torch.randn(BATCH, TOKENS), policy=policy.requires_grad_()
    )
    return attn, x, {name: drawn[name] for name in inputs if inputs[name]}


def gradients(out, attn, x, inputs):
    leaves = [x, *attn.parameters()]
    leaves += [inputs['policy']] if 'policy' in inputs else []
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((out * weight).sum(), leaves)


@pytest.mark.parametrize('rows', [1, 4, 9, 100])
@pytest.mark.parametrize('biased', [True, False])
@pytest.mark.parametrize('statistic', [None, 'column_sum', 'class_row'])
@pytest.mark.parametrize('with_policy', [True, False])
def test_equations(rows, biased, statistic, with_policy, monkeypatch):
    """Outputs, statistics and gradients, in tiles of some rows."""
    monkeypatch.setattr(attention, '_TILE', rows * HEADS * TOKENS)
    attn, x, inputs = case(bias=biased, policy=with_policy)
    out, found = attn(x, statistic, **inputs)
    expected = by_hand(attn, x, **inputs)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for grad, reference in zip(
        gradients(out, attn, x, inputs),
        gradients(expected, attn, x, inputs),
        strict=True,
    ):
        torch.testing.assert_close(grad, reference, rtol=1e-3, atol=1e-5)
    probs = probabilities(attn, x, **inputs)
    if statistic == 'column_sum':
        torch.testing.assert_close(found, probs.sum((1, 2)).detach())
    if statistic == 'class_row':
        torch.testing.assert_close(found, probs[:, :, 0].mean(1))


def test_only_a_pruned_token_with_a_policy():
    attn, _, _ = case()
    x = torch.randn(BATCH, 1, DIMS)
    out, _ = attn(x, policy=torch.zeros(BATCH, 1))
    # It attends to itself.
    torch.testing.assert_close(out, attn(x)[0], rtol=1e-4, atol=1e-5)


def largest_kept(call):
    """Elements of the largest tensor that the backward pass keeps."""
    sizes = []

    def pack(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = call()
    assert out.requires_grad
    return max(sizes)


def test_no_probabilities_are_kept_with_a_policy():
    """Neither one matrix of them a block, nor the six of its softmax."""
    attn, _, _ = case()
    x = torch.randn(BATCH, 200, DIMS)
    policy = torch.ones(BATCH, 200, requires_grad=True)
    pairs = BATCH * HEADS * 200 * 200
    assert largest_kept(lambda: by_hand(attn, x, policy=policy)) >= pairs
    assert largest_kept(lambda: attn(x, policy=policy)[0]) < pairs / 10


def test_dropout_is_that_of_the_forward_pass():
    """Tiles are computed twice, with the same elements dropped."""
    attn, x, inputs = case(policy=True)
    attn.attn_drop_rate = 0.5
    attn.train()
    torch.manual_seed(3)
    out = attn(x, **inputs)[0]
    found = gradients(out, attn, x, inputs)
    torch.manual_seed(3)
    probs = F.dropout(probabilities(attn, x, **inputs), 0.5)
    v = attn.qkv(x).unflatten(2, (3, HEADS, -1))[:, :, 2].transpose(1, 2)
    expected = attn.proj((probs @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    for grad, reference in zip(
        found, gradients(expected, attn, x, inputs), strict=True
    ):
        torch.testing.assert_close(grad, reference, rtol=1e-3, atol=1e-5)


def test_what_is_left_where_next_to_nothing_is():
    """By the published formula, (e^l + eps / N) / (sum e^l + eps), 1e-6.

    Of two tokens that have both left, each sees itself alone: the first one
    with a weight of 1e-6, as its logit for the second is so much larger.
    """
    attn = Attention(1, 1, qkv_bias=False)
    torch.nn.init.ones_(attn.qkv.weight)
    torch.nn.init.ones_(attn.proj.weight)
    torch.nn.init.zeros_(attn.proj.bias)
    second = 1 + math.log(1e6)
    out, _ = attn(torch.tensor([[[1.0], [second]]]), policy=torch.zeros(1, 2))
    expected = torch.tensor([0.75 + 0.25 * second, second])
    torch.testing.assert_close(out[0, :, 0], expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize('statistic', [None, 'column_sum'])
@pytest.mark.parametrize(
    ('options', 'alpha'),
    [
        ({'qk_norm': 'fixed'}, 1),
        ({'qk_norm': 'fixed', 'qk_alpha': 3}, 3),
        ({'qk_norm': 'learned'}, 10),
        ({'qk_norm': 'learned', 'qk_alpha': 5}, 5),
    ],
)
def test_normalised_queries_and_keys(options, alpha, statistic):
    """Token Pooling, appendix F: logits are cosines, alpha times as large."""
    attn, x = Attention(DIMS, HEADS, **options), case()[1]
    heads = attn.qkv(x).unflatten(2, (3, HEADS, -1))
    q, k, v = heads.permute(2, 0, 3, 1, 4)
    cosines = F.cosine_similarity(q[..., None, :], k[..., None, :, :], dim=-1)
    probs = (alpha * cosines).softmax(-1)
    out, found = attn(x, statistic)
    expected = attn.proj((probs @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, expected)
    if statistic:
        torch.testing.assert_close(found, probs.sum((1, 2)).detach())


@pytest.mark.parametrize('dtype', [torch.bfloat16, float16])
@pytest.mark.parametrize('qk_norm', ['fixed', 'learned'])
def test_queries_and_keys_without_a_length(qk_norm, dtype):
    """They stay 0, and each token then attends to all alike."""
    attn = Attention(8, 2, qkv_bias=False, qk_norm=qk_norm).to(dtype)
    x = torch.randn(1, 5, 8, dtype=dtype)
    with torch.no_grad():
        attn.qkv.weight[:16] = 0
        out, _ = attn(x)
        values = attn.qkv(x)[..., 16:]
        expected = attn.proj(values.mean(1, keepdim=True)).expand_as(out)
    torch.testing.assert_close(out, expected)


def test_nothing_attends_to_nothing():
    attn = Attention(8, 2, qkv_bias=False, qk_norm='fixed')
    x = torch.zeros(1, 5, 8, requires_grad=True)
    attn(x)[0].sum().backward()
    assert x.grad.isfinite().all()
