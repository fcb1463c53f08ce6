"""The plain average of the visible values. A control: mixing that cannot choose."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.registry import register


class RunningSum(NamedTuple):
    """Decoding state: the sum of the values met so far, and how many there were."""

    total: Tensor  # (batch, heads, 1, head_dim), float32 at least
    tokens: Tensor  # (batch, 1, 1, 1)


@register(
    "uniform",
    supports=Supports(
        causal=True,
        padding=True,
        decode=True,
        reads=("v",),
        time=Growth("n d", 1.0),
        memory=Growth("n d", 1.0),
    ),
)
class Uniform(Variant):
    """Every visible token counts the same.

    out_i = sum_j m_ij v_j / sum_j m_ij,    m_ij = 1 where token j is real and, if causal, j <= i

    v (batch, kv_heads, n, head_dim); it reads neither q nor k. Causal it is the running mean, in linear time.

    Source: the causal form is the average attention of Zhang et al. 2018, "Accelerating Neural Transformer via an Average
    Attention Network", equation 1.
    """

    def mix(self, q: Any, k: Any, v: Tensor, key_mask: Tensor | None) -> Tensor:
        real = _counted(v, key_mask)
        if self.causal:
            total, count = v.to(real.dtype).cumsum(dim=2), real.cumsum(dim=2)
        else:
            total, count = v.sum(dim=2, keepdim=True, dtype=real.dtype), real.sum(dim=2, keepdim=True)
        return (total / count.clamp(min=1)).to(v.dtype).expand_as(v).contiguous()

    def dense_weights(self, q: Any, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        n = k.shape[2]
        visible = torch.ones(k.shape[0], self.heads, n, n, dtype=torch.bool, device=k.device)
        if key_mask is not None:
            visible = visible & key_mask[:, None, None, :]
        if self.causal:
            visible = visible.tril()
        return (visible / visible.sum(dim=-1, keepdim=True).clamp(min=1)).to(k.dtype)

    def prefill(self, q: Any, k: Any, v: Tensor, key_mask: Tensor | None = None) -> tuple[Tensor, RunningSum]:
        out = self(q, k, v, key_mask=key_mask)
        _, _, v, key_mask, _ = self._prepared(q, k, v, key_mask, {})
        real = _counted(v, key_mask)
        return out, RunningSum(v.sum(dim=2, keepdim=True, dtype=real.dtype), real.sum(dim=2, keepdim=True))

    def step(self, q: Any, k: Any, v: Tensor, state: Any) -> tuple[Tensor, RunningSum]:
        _, _, v, _, _ = self._prepared(q, k, v, None, {})
        state = RunningSum(state.total + v, state.tokens + 1)
        return (state.total / state.tokens).to(v.dtype), state


def _counted(v: Tensor, key_mask: Tensor | None) -> Tensor:
    """(batch, 1, n, 1): 1 at each real token, in the type that sums are taken in."""
    wide = torch.promote_types(v.dtype, torch.float32)
    if key_mask is None:
        return v.new_ones(v.shape[0], 1, v.shape[2], 1, dtype=wide)
    return key_mask[:, None, :, None].to(wide)
