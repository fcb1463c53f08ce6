"""A window round each position: cost linear in the length, and nothing seen from farther away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import dense_softmax, sparse_attention
from attnbench.registry import register
from torch import Tensor


class WindowCache(NamedTuple):
    """Decoding state: the last `window` keys and values, and which of them are real (None: all)."""

    k: Tensor
    v: Tensor
    key_mask: Tensor | None


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

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, WindowCache]:
        last = None if key_mask is None else key_mask[:, -self.window :].clone()
        state = WindowCache(k[:, :, -self.window :].clone(), v[:, :, -self.window :].clone(), last)
        return self(q, k, v, key_mask=key_mask), state

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: WindowCache) -> tuple[Tensor, WindowCache]:
        start = max(0, state.k.shape[2] + 1 - self.window)
        key_mask = state.key_mask
        if key_mask is not None:
            key_mask = torch.cat([key_mask[:, start:], key_mask.new_ones(key_mask.shape[0], 1)], dim=1)
        state = WindowCache(
            torch.cat([state.k[:, :, start:], k], dim=2), torch.cat([state.v[:, :, start:], v], dim=2), key_mask
        )
        return self(q, state.k, state.v, key_mask=key_mask), state
