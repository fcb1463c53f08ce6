"""A window round each position: cost linear in the length, and nothing seen from farther away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import dense_softmax, sparse_attention
from attnbench.kernels.caching import Cache, extended, right_aligned
from attnbench.registry import register


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        causal=True,
        cross=bool(options["causal"]),  # aligned at the last key, as decoding in chunks needs it
        padding=True,
        decode=True,
        time=Growth("n window d", 1.0),
        memory=Growth("n d", 1.0),
        path="n / window",
        exact_when={"window": "n"},
        small={"window": 4},
        notes=("n_q != n_k in the causal form alone, the last query aligned with the last key",),
    )


@register("local", supports=supports)
class Local(Variant):
    """Attention inside a sliding window.

    out_i = softmax over j of (q_i k_j / sqrt(head_dim)) v_j,  |i - j| < window;  causal: i - window < j <= i

    Every position has a window of its own (no blocks), of 2 window - 1 keys, or `window` of them where causal, fewer at the
    ends. A window of at least n is full attention.

    Args:
        window: reach of the window, itself included; at least 1.

    Source: the local attention of Parmar et al. 2018, "Image Transformer", section 3.2, per position as in Beltagy et al.
    2020, "Longformer", section 3.1.
    """

    def __init__(self, *, window: int = 128, **common: Any) -> None:
        super().__init__(**common)
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise ValueError(f"{self.name}: window must be a whole number of at least 1, received {window!r}")
        self.window = window

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        reach = self.window - 1
        out, _ = sparse_attention(
            q,
            k,
            v,
            before=reach,
            after=0 if self.causal else reach,
            shift=k.shape[2] - q.shape[2],
            band_mask=key_mask,
        )
        return out

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        n_q, n_k = q.shape[2], k.shape[2]
        distance = torch.arange(n_q, device=q.device)[:, None] + (n_k - n_q) - torch.arange(n_k, device=q.device)
        visible = (distance.abs() < self.window)[None, None]
        if self.causal:
            visible = visible & (distance >= 0)
        return dense_softmax(q, k, visible, key_mask)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        return self(q, k, v, key_mask=key_mask), right_aligned(k, v, key_mask, self.window)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        state = extended(state, k, v, self.window)
        return self(q, state.k, state.v, key_mask=state.key_mask), state
