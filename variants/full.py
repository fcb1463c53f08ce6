"""Scaled dot-product attention, fused: every query sees every key, and no weight is ever stored."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import dense_softmax, masked_attention
from attnbench.kernels.caching import Cache, extended
from attnbench.registry import register


@register(
    "full",
    supports=Supports(
        causal=True,
        cross=True,
        padding=True,
        dropout=True,
        decode=True,
        grouped=True,
        time=Growth("n^2 d", 2.0),
        memory=Growth("n d", 1.0),
        exact_when={},
    ),
)
class Full(Variant):
    """Full attention through torch's fused kernels.

    out = softmax(q k^T / sqrt(head_dim)) v

    q (batch, heads, n_q, head_dim), k and v (batch, kv_heads, n_k, head_dim). Causal with n_q != n_k aligns the last query
    with the last key.

    Source: Vaswani et al. 2017, "Attention Is All You Need", equation 1.
    """

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        n_q, n_k = q.shape[2], k.shape[2]
        grouped, dropout = self.kv_heads != self.heads, self.dropout if self.training else 0.0
        triangular = self.causal and n_q > 1  # a last query alone sees all
        if key_mask is None and (not triangular or n_q == n_k):
            return scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=triangular, enable_gqa=grouped)
        # (batch or 1, 1, n_q or 1, n_k), True where a query sees a key
        mask = q.new_ones(1, 1, 1, n_k, dtype=torch.bool) if key_mask is None else key_mask[:, None, None, :]
        if triangular:
            mask = mask & mask.new_ones(n_q, n_k).tril(n_k - n_q)
        return masked_attention(q, k, v, mask, dropout=dropout, grouped=grouped)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        if k.shape[1] != self.heads:
            k = k.repeat_interleave(self.heads // k.shape[1], dim=1)
        n_q, n_k = q.shape[2], k.shape[2]
        seen = torch.ones(1, 1, n_q, n_k, dtype=torch.bool, device=q.device)
        return dense_softmax(q, k, seen.tril(n_k - n_q) if self.causal else seen, key_mask)

    def reference(
        self, q: Tensor, k: Tensor, v: Tensor, *, key_mask: Tensor | None = None, **streams: Tensor
    ) -> Tensor:
        q, k, v, key_mask, _ = self._prepared(q, k, v, key_mask, streams)
        return self.dense_weights(q, k, key_mask=key_mask) @ v.repeat_interleave(self.heads // v.shape[1], dim=1)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, Cache]:
        return self(q, k, v, key_mask=key_mask), Cache(k, v, key_mask)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Cache]:
        state = extended(state, k, v)
        return self(q, state.k, state.v, key_mask=state.key_mask), state
