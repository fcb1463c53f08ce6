"""Each query sees the positions a multiple of the stride away: the length is folded, and attention runs inside each fold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import dense_softmax, masked_attention
from attnbench.kernels.caching import Cache, extended, right_aligned
from attnbench.kernels.tokens import whole_blocks
from attnbench.registry import register


def supports(options: Mapping[str, Any]) -> Supports:
    sqrt = options["stride"] == "sqrt"
    return Supports(
        causal=True,
        padding=True,
        decode=True,
        max_len=sqrt,
        time=Growth("n^1.5 d", 1.5) if sqrt else Growth("n^2 d / stride", 2.0),
        memory=Growth("n d, and n^2 / stride where a key mask meets causal", 1.5 if sqrt else 2.0),
        path="infinite across folds",
        exact_when={"stride": 1},
        small={"stride": 4},
        notes=("positions in different folds never meet: mix it with a local variant over heads or layers",),
    )


@register("strided", supports=supports)
class Strided(Variant):
    """Strided attention: the second factor of the sparse Transformer.

    out_i = softmax over j of (q_i k_j / sqrt(head_dim)) v_j,  (i - j) mod stride = 0;  causal: and j <= i

    Args:
        stride: a whole number of at least 1, or "sqrt": the square root of max_len, rounded up.

    Source: Child et al. 2019, "Generating Long Sequences with Sparse Transformers", section 4.3, A^(2).
    """

    def __init__(self, *, stride: int | Literal["sqrt"] = "sqrt", **common: Any) -> None:
        super().__init__(**common)
        if stride == "sqrt":
            stride = math.isqrt((self.max_len or 1) - 1) + 1
        if not isinstance(stride, int) or isinstance(stride, bool) or stride < 1:
            raise ValueError(f"{self.name}: stride must be a whole number of at least 1 or 'sqrt', received {stride!r}")
        self.stride = stride

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        batch, heads, n, _ = q.shape
        stride = min(self.stride, n)
        missing = -n % stride
        mask = None
        if key_mask is not None or (missing and not self.causal):  # a causal query never sees the padding behind it
            mask = key_mask if key_mask is not None else q.new_ones(batch, n, dtype=torch.bool)
            mask = rearrange(pad(mask, (0, missing)), "b (row fold) -> b fold row", fold=stride)
            mask = mask[:, :, None]  # the same keys for every query of a fold, unless causal
            if self.causal:
                mask = mask.expand(-1, -1, n // stride + bool(missing), -1).tril()
            mask = mask.repeat_interleave(heads, dim=0)
        q, k, v = (
            rearrange(whole_blocks(x, stride), "b h (row fold) d -> (b h) fold row d", fold=stride) for x in (q, k, v)
        )
        if mask is None:
            out = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        else:
            out = masked_attention(q, k, v, mask)
        return rearrange(out, "(b h) fold row d -> b h (row fold) d", b=batch)[:, :, :n]

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        position = torch.arange(q.shape[2], device=q.device)
        distance = position[:, None] - position
        visible = (distance % self.stride == 0)[None, None]
        if self.causal:
            visible = visible & (distance >= 0)
        return dense_softmax(q, k, visible, key_mask)

    def prefill(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, Cache]:
        return self(q, k, v, key_mask=key_mask), right_aligned(k, v, key_mask)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Cache) -> tuple[Tensor, Cache]:
        state = extended(state, k, v)
        fold = slice((state.k.shape[2] - 1) % self.stride, None, self.stride)
        mask = None if state.key_mask is None else state.key_mask[:, None, None, fold]
        grouped = self.kv_heads != self.heads
        out = scaled_dot_product_attention(
            q, state.k[:, :, fold], state.v[:, :, fold], attn_mask=mask, enable_gqa=grouped
        )
        return out, state
