"""Synthesizer: attention weights without query-key products, from each token alone or from nothing at all."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

import torch
from einops import einsum
from torch import Tensor, nn
from torch.nn.functional import dropout, relu

from attnbench.capabilities import Growth, Stream, Supports
from attnbench.contract import Variant
from attnbench.errors import UserError, nearest
from attnbench.registry import register

KINDS = ("dense", "random", "fixed-random", "factorised-dense", "factorised-random", "dot")


def kinds_of(kind: object) -> list[str]:
    """The parts of a kind such as "random+dot".

    Raises ValueError where a part is unknown or occurs twice, or where "dot" stands alone.
    """
    parts = str(kind).split("+")
    for part in parts:
        if part not in KINDS:
            raise UserError(
                f"synthesizer: kind must be one of {', '.join(KINDS)}, or several joined by '+', "
                f"received {kind!r}{nearest(part, KINDS)}"
            )
    if len(set(parts)) != len(parts):
        raise UserError(f"synthesizer: kind names a part twice: {kind!r}")
    if parts == ["dot"]:
        raise UserError("synthesizer: kind 'dot' alone is full attention; mix it with another kind, as in 'random+dot'")
    return parts


def supports(options: Mapping[str, Any]) -> Supports:
    kinds = kinds_of(options["kind"])
    return Supports(
        causal=True,
        padding=True,
        dropout=True,
        max_len=True,
        reads=("q", "k", "v") if "dot" in kinds else ("v",),
        streams=(Stream("x"),) if {"dense", "factorised-dense"} & set(kinds) else (),
        time=Growth("n^2 d", 2.0),
        memory=Growth("n^2", 2.0),
        small={"rank": 2},
        notes=("the first of the dense kinds' two layers is the stream x, which the backbone projects for each head",),
    )


@register("synthesizer", supports=supports)
class Synthesizer(Variant):
    """Attention with synthesized weights.

    out = softmax(B) v,    with B (n, n) for each head, by kind:

    - "dense": B = relu(x) W + b, from each token's own projection x; W (head_dim, max_len)
    - "random": B is learned; "fixed-random": B is drawn once and kept
    - "factorised-dense": B_ij = (relu(x_i) U)_(j // c) (relu(x_i) W)_(j % c); U and W have c = ceil(sqrt(max_len)) columns
    - "factorised-random": B = R S^T, with R and S learned, (max_len, rank)
    - several joined by "+", with "dot" (q k^T / sqrt(head_dim)) as one more: B = sum_p a_p B_p, where the learned a sum to 1
      over the parts p, for each head

    An input of length n uses the first n rows and columns.

    Args:
        kind: as above.
        rank: width of the factors of "factorised-random".

    Source: Tay et al. 2020, "Synthesizer: Rethinking Self-Attention in Transformer Models", section 3.
    """

    fixed_random: Tensor

    def __init__(self, *, kind: str = "dense", rank: int = 8, **common: Any) -> None:
        super().__init__(**common)
        if not isinstance(rank, int) or rank < 1:
            raise UserError(f"synthesizer: rank must be a whole number of at least 1, received {rank!r}")
        assert self.max_len is not None  # declared as needed, so the base class has refused its absence
        self.kinds, length = kinds_of(kind), self.max_len
        self.columns = isqrt(length - 1) + 1
        if "dense" in self.kinds:
            self.dense = nn.Parameter(torch.randn(self.heads, self.head_dim, length) * self.head_dim**-0.5)
            self.dense_bias = nn.Parameter(torch.zeros(self.heads, 1, length))
        if "factorised-dense" in self.kinds:
            shape = (2, self.heads, self.head_dim, self.columns)
            self.factors = nn.Parameter(torch.randn(shape) * self.head_dim**-0.5)
        if "random" in self.kinds:
            self.random = nn.Parameter(torch.randn(self.heads, length, length))
        if "fixed-random" in self.kinds:
            self.register_buffer("fixed_random", torch.randn(self.heads, length, length))
        if "factorised-random" in self.kinds:
            self.row_factors = nn.Parameter(torch.randn(self.heads, length, rank) * rank**-0.5)
            self.column_factors = nn.Parameter(torch.randn(self.heads, length, rank))
        if len(self.kinds) > 1:
            self.shares = nn.Parameter(torch.zeros(len(self.kinds), self.heads, 1, 1))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, **streams: Tensor) -> Tensor:
        logits = self._logits(q, k, v.shape[2], **streams).to(v.dtype)
        visible = self._visible(v.shape[2], key_mask, v.device)
        if visible is not None:
            logits = logits.masked_fill(~visible, -torch.inf)
        weights = logits.softmax(dim=-1)
        if self.training and self.dropout:
            weights = dropout(weights.expand(v.shape[0], -1, -1, -1), self.dropout)
        return weights @ v

    def _visible(self, n: int, key_mask: Tensor | None, device: torch.device) -> Tensor | None:
        """(batch or 1, 1, n or 1, n) bool. A query without a real key sees masked ones, whose values are zero."""
        past = torch.ones(n, n, dtype=torch.bool, device=device).tril() if self.causal else None
        if key_mask is None:
            return past
        real = key_mask[:, None, None, :] if past is None else key_mask[:, None, None, :] & past
        empty = ~real.any(dim=-1, keepdim=True)
        return real | (empty if past is None else empty & past)

    def _logits(self, q: Tensor, k: Tensor, n: int, x: Tensor | None = None) -> Tensor:
        """B (batch or 1, heads, n, n)."""
        features = None if x is None else relu(x)
        parts = (self._part(kind, q, k, n, features) for kind in self.kinds)
        if len(self.kinds) == 1:
            return next(parts)
        return sum(share * part for share, part in zip(self.shares.softmax(dim=0), parts, strict=True))

    def _part(self, kind: str, q: Tensor, k: Tensor, n: int, features: Any) -> Tensor:
        if kind == "dense":
            return features @ self.dense[..., :n].to(features) + self.dense_bias[..., :n].to(features)
        if kind == "factorised-dense":
            coarse, fine = (features @ factor.to(features) for factor in self.factors)
            coarse = coarse[..., : -(-n // self.columns)]
            product = einsum(coarse, fine, "batch heads n coarse, batch heads n fine -> batch heads n coarse fine")
            return product.flatten(-2)[..., :n]
        if kind == "factorised-random":
            return (self.row_factors[:, :n] @ self.column_factors[:, :n].transpose(-1, -2))[None]
        if kind == "dot":
            return (q * self.head_dim**-0.5) @ k.transpose(-1, -2)  # scaled first, lest half precision overflow
        return (self.random if kind == "random" else self.fixed_random)[None, :, :n, :n]

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor) -> Tensor:
        batch, _, n, _ = k.shape
        visible = torch.ones(1, 1, n, n, dtype=torch.bool, device=k.device)
        if self.causal:
            visible = visible.tril()
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]
        logits = self._logits(q, k, n, **streams)
        scores = torch.where(visible, (logits - logits.amax(dim=-1, keepdim=True)).exp(), 0)
        total = scores.sum(dim=-1, keepdim=True)
        weights = scores / torch.where(total == 0, 1, total)
        return weights.expand(batch, -1, -1, -1).to(k.dtype)
