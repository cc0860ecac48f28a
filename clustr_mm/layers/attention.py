"""Self-attention that hands out what a token-thinning rule needs of it."""

from functools import partial

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from clustr_mm.arguments import check_positive
from .linear import Linear
from .recompute import recompute

# Attention probabilities held at a time for an image: 8 MB in float32. Split
# by image, so that a result does not depend on the rest of the batch.
_TILE = 2**21
# What a pruned token still contributes (DynamicViT's stable softmax).
_EPS = 1e-6


class Attention(BaseModule):
    """Multi-head self-attention.

    Probabilities are computed only as far as somebody needs them.

    Args:
        embed_dims (int): Number of channels.
        num_heads (int): Number of heads.
        qkv_bias (bool): Whether queries, keys and values have a bias.
        qk_norm (str, optional): Normalise queries and keys to length 1; the
            logits are multiplied by alpha, which is ``'fixed'`` or
            ``'learned'``. By default they are divided by the root of the
            head's channels instead.
        qk_alpha (float, optional): Alpha, or where a learnt one starts. By
            default as in ``ALPHAS``.
        attn_drop_rate (float): Dropout of the probabilities.
        drop_rate (float): Dropout of the output.
    """

    # What can be known of it. A number for each token [B, N]: the attention
    # that the first token pays to it, mean over heads; or the attention it
    # receives, summed over queries and heads. Or its key [B, N, D], mean
    # over heads.
    STATISTICS = (None, 'class_row', 'column_sum', 'keys')
    # Token Pooling fixes it at 1 (appendix F), and does not say where a learnt
    # one starts. From 1, where probabilities differ by a factor of e^2 at
    # most, it takes long to learn to look at some tokens alone; 10 is where
    # Swin Transformer V2 starts (docs/study.md compares them).
    ALPHAS = {'fixed': 1.0, 'learned': 10.0}

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        qkv_bias: bool = True,
        qk_norm: str | None = None,
        qk_alpha: float | None = None,
        attn_drop_rate: float = 0.0,
        drop_rate: float = 0.0,
        init_cfg: dict | None = None,
    ):
        super().__init__(init_cfg)
        if embed_dims % num_heads:
            raise ValueError(
                f'{embed_dims} channels do not split into {num_heads} heads'
            )
        if qk_norm not in (None, *self.ALPHAS):
            raise ValueError(
                f"qk_norm must be None, 'fixed' or 'learned', not {qk_norm!r}"
            )
        if qk_alpha is not None:
            check_positive(qk_alpha=qk_alpha)
            if qk_norm is None:
                raise ValueError(
                    'qk_alpha is of no use without qk_norm: set qk_norm, or '
                    'leave out qk_alpha'
                )
        self.num_heads = num_heads
        self.qk_norm = qk_norm
        self.attn_drop_rate = attn_drop_rate
        self.qkv = Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = Linear(embed_dims, embed_dims)
        self.drop = nn.Dropout(drop_rate)
        if qk_norm is not None:
            self.alpha = float(qk_alpha or self.ALPHAS[qk_norm])
        if qk_norm == 'learned':
            self.alpha = nn.Parameter(torch.tensor([self.alpha]))

    def forward(
        self,
        x: Tensor,
        statistic: str | None = None,
        bias: Tensor | None = None,
        policy: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            x (Tensor): Tokens [B, N, C].
            statistic (str, optional): One of ``STATISTICS``.
            bias (Tensor, optional): What is added to all logits of a key,
                [B, N].
            policy (Tensor, optional): 1 for the tokens that others may
                attend to, [B, N]; gradients flow through it.

        Returns:
            tuple[Tensor, Tensor | None]: Tokens [B, N, C] and the
            statistic.
        """
        in_tiles = policy is not None or statistic == 'column_sum'
        q, k, v, scale = self._project(x, in_tiles)
        drop = self.attn_drop_rate if self.training else 0.0
        if bias is not None:
            bias = bias[:, None, None].to(q.dtype)
        found = None
        if in_tiles:
            out, sums = _attend_in_tiles(q * scale, k, v, bias, policy, drop)
        else:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=drop, scale=scale
            )
        if statistic == 'column_sum':
            found = sums
        elif statistic == 'class_row':
            first = q[:, :, :1] * scale
            found = _probabilities(first, 0, k, bias, policy).mean(1)[:, 0]
        elif statistic == 'keys':
            found = k.detach().mean(1)
        out = self.proj(out.transpose(1, 2).flatten(2))
        return self.drop(out), found

    def _project(
        self, x: Tensor, contiguous: bool
    ) -> tuple[Tensor, Tensor, Tensor, float]:
        """Queries, keys, values [B, heads, N, D] and the logits' factor.

        Products of matrices want them ``contiguous``, and would copy each
        by itself.
        """
        heads = self.qkv(x).unflatten(2, (3, self.num_heads, -1))
        heads = heads.permute(2, 0, 3, 1, 4)
        q, k, v = (heads.contiguous() if contiguous else heads).unbind()
        if self.qk_norm is None:
            return q, k, v, q.shape[-1] ** -0.5
        q, k = _unit(q), _unit(k)
        if self.qk_norm == 'fixed':
            return q, k, v, self.alpha
        return q * self.alpha.to(q.dtype), k, v, 1.0


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1, and 0 for 0, in float16 too."""
    return F.normalize(x, dim=-1, eps=max(1e-12, torch.finfo(x.dtype).tiny))


def _probabilities(
    q: Tensor,
    start: int,
    k: Tensor,
    bias: Tensor | None,
    policy: Tensor | None,
) -> Tensor:
    """Attention of these queries, of tokens ``start`` and those after it."""
    logits = q @ k.mT
    if bias is not None:
        logits = logits + bias
    if policy is None:
        return logits.softmax(-1)
    return _policy_softmax(logits, policy, start)


def _attend(
    q: Tensor,
    start: int,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    policy: Tensor | None,
    drop: float,
) -> tuple[Tensor, Tensor]:
    """Output of these queries and the attention their keys receive."""
    probs = _probabilities(q, start, k, bias, policy)
    received = probs.detach().sum((1, 2), dtype=torch.float32)
    out = F.dropout(probs, drop) @ v if drop else probs @ v
    return out, received


def _attend_in_tiles(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    policy: Tensor | None,
    drop: float,
) -> tuple[Tensor, Tensor]:
    """Attention output, and the attention each key receives from all.

    The sums rank and weigh tokens; no gradient flows through them.
    """
    attend = partial(_attend, k=k, v=v, bias=bias, policy=policy, drop=drop)
    num_tokens = q.shape[2]
    # All tokens may have left.
    rows = max(1, _TILE // max(1, q.shape[1] * num_tokens))
    if rows >= num_tokens and policy is None:
        return attend(q, 0)
    # A softmax with a policy would keep six times the probabilities.
    starts = range(0, max(1, num_tokens), rows)
    tiles = map(partial(recompute, attend), q.split(rows, 2), starts)
    outs, sums = zip(*tiles, strict=True)
    return torch.cat(outs, 2), torch.stack(sums).sum(0)


def _policy_softmax(logits: Tensor, policy: Tensor, start: int) -> Tensor:
    """Softmax over the tokens that are kept (DynamicViT, eqs. 10 and 11).

    A pruned token still attends to itself. In float32, with a small constant
    that keeps gradients finite where nothing is left.
    """
    num_rows, num_tokens = logits.shape[-2:]
    itself = torch.ones(num_rows, num_tokens, device=policy.device)
    itself = itself.tril(start).triu(start)
    visible = policy[:, None, None].float()
    visible = visible + (1 - visible) * itself
    shifted = logits.float() - logits.amax(-1, keepdim=True).float()
    weight = shifted.exp() * visible
    total = weight.sum(-1, keepdim=True) + _EPS
    return ((weight + _EPS / num_tokens) / total).to(logits.dtype)
