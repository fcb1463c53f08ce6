"""A window round each position, and a few global tokens that see everything and are seen by everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import dense_softmax, full_rows, sparse_attention
from attnbench.registry import register


@register(
    "longformer",
    supports=Supports(
        padding=True,
        time=Growth("n (window + tokens) d", 1.0),
        memory=Growth("n d", 1.0),
        path="2",
        exact_when={"window": "n"},
        small={"window": 4, "tokens": 2},
        notes=(
            "global tokens share the projections of the others, where the paper gives them projections of their own",
            "causal is refused, since a global token carries later tokens to earlier ones",
        ),
    ),
)
class Longformer(Variant):
    """Local and global attention under one softmax.

    out_i = softmax over j of (q_i k_j / sqrt(head_dim)) v_j,  |i - j| < window, or i is global, or j is global

    Every visible key counts once. A global position that is masked, or beyond the length, is no global token.

    Args:
        window: reach of the window, itself included: 2 window - 1 keys.
        tokens: how many of the first positions are global, or the global positions themselves.

    Source: Beltagy et al. 2020, "Longformer: The Long-Document Transformer", section 3.1.
    """

    def __init__(self, *, window: int = 128, tokens: int | Sequence[int] = 1, **common: Any) -> None:
        super().__init__(**common)
        if not isinstance(window, int) or isinstance(window, bool) or window < 1:
            raise ValueError(f"{self.name}: window must be a whole number of at least 1, received {window!r}")
        if isinstance(tokens, int):
            chosen: Sequence[int] = range(tokens)
            valid = tokens >= 0 and not isinstance(tokens, bool)
        else:
            chosen, valid = tokens, all(isinstance(position, int) and position >= 0 for position in tokens)
        if not valid:
            raise ValueError(f"{self.name}: tokens must be a count or a list of positions from 0, received {tokens!r}")
        self.window, self.positions = window, tuple(sorted(set(chosen)))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        n, reach = q.shape[2], self.window - 1
        positions = torch.tensor([p for p in self.positions if p < n], dtype=torch.long, device=q.device)
        if not len(positions):
            return sparse_attention(q, k, v, before=reach, after=reach, band_mask=key_mask)[0]
        ordinary = q.new_ones(1, n, dtype=torch.bool).index_fill(1, positions, False)
        out, _ = sparse_attention(
            q,
            k,
            v,
            before=reach,
            after=reach,
            band_mask=ordinary.expand(q.shape[0], n) if key_mask is None else ordinary & key_mask,
            extra=positions.view(1, 1, 1, -1),
            extra_mask=key_mask,
        )
        rows = full_rows(q[:, :, positions], k, v, key_mask)
        if key_mask is not None:  # a masked position is no global token
            rows = torch.where(key_mask[:, None, positions, None], rows, out[:, :, positions])
        return out.index_copy(2, positions, rows)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        position = torch.arange(q.shape[2], device=q.device)
        special = torch.isin(position, torch.tensor(self.positions, dtype=torch.long, device=q.device))[None]
        if key_mask is not None:
            special = special & key_mask
        visible = (
            ((position[:, None] - position).abs() < self.window) | special[:, None, :, None] | special[:, None, None]
        )
        return dense_softmax(q, k, visible, key_mask)
