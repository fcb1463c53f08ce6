"""No mixing at all: each token keeps its own value. A control: what the rest of the Transformer does alone."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.registry import register


@register(
    "none",
    supports=Supports(
        causal=True,
        padding=True,
        decode=True,
        reads=("v",),
        time=Growth("n d", 1.0),
        memory=Growth("n d", 1.0),
        sequential="1",
        path="infinite",
    ),
)
class NoMixing(Variant):
    """Values passed through.

    out_i = v_i

    v (batch, kv_heads, n, head_dim); with fewer key/value heads than heads each group shares its value. It reads neither q
    nor k.
    """

    def mix(self, q: Any, k: Any, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return v.clone()  # an output that is its input would let a caller's in-place work reach v

    def dense_weights(self, q: Any, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        identity = torch.eye(k.shape[2], dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
        return identity if key_mask is None else identity * key_mask[:, None, None, :]

    def prefill(self, q: Any, k: Any, v: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self(q, k, v, key_mask=key_mask), v.new_zeros(v.shape[0], 0)  # nothing to remember

    def step(self, q: Any, k: Any, v: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self(q, k, v), state
