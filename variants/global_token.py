"""A few special tokens see everything and are seen by everything; all others see them and themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels import dense_softmax, full_rows
from attnbench.registry import register


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        padding=True,
        global_tokens="tokens" if options["kind"] == "learned" else None,
        time=Growth("n tokens d", 1.0),
        memory=Growth("n (tokens + d)", 1.0),
        path="2",
        exact_when=None if options["kind"] == "pooled" else {"tokens": "n"},
        small={"tokens": 4},
        notes=(
            "causal is refused, since a global token carries later tokens to earlier ones",
            "the special tokens share the projections of the others",
        ),
    )


@register("global-token", supports=supports)
class GlobalToken(Variant):
    """Attention through global tokens, a star whose centre is g tokens.

    out_i = softmax over j of (q_i k_j / sqrt(head_dim)) v_j,  j global or j = i;  over all j where i is global itself

    Pooled tokens are no positions: token s is the mean of the s-th of g equal runs of real tokens. It first attends to all,
    u_s = softmax over j of (mean q_s k_j / sqrt(head_dim)) v_j, and then every position sees the pairs (mean k_s, u_s) beside
    its own. A global position that is masked, or beyond the length, is no global token.

    Args:
        tokens: how many global tokens; or, for chosen ones, their positions.
        kind: "chosen" positions of the sequence (the first ones, or those given); "learned" tokens, which the backbone
            prepends once, so that they too are the first positions; or "pooled" tokens.

    Source: the star of Guo et al. 2019, "Star-Transformer", section 3.1, with g centres; the internal and external global
    tokens of Zaheer et al. 2020, "Big Bird", section 2; pooled ones as the inducing points of Lee et al. 2019, "Set
    Transformer", section 3.1.
    """

    def __init__(
        self,
        *,
        tokens: int | Sequence[int] = 16,
        kind: Literal["chosen", "learned", "pooled"] = "chosen",
        **common: Any,
    ) -> None:
        super().__init__(**common)
        if kind not in ("chosen", "learned", "pooled"):
            raise ValueError(f"{self.name}: kind must be 'chosen', 'learned' or 'pooled', received {kind!r}")
        counted = isinstance(tokens, int) and not isinstance(tokens, bool) and tokens > 0
        listed = not isinstance(tokens, int) and all(isinstance(p, int) and p >= 0 for p in tokens) and len(tokens) > 0
        if not (counted or (listed and kind == "chosen")):
            valid = "a count of at least 1" + (", or a list of positions from 0" if kind == "chosen" else "")
            raise ValueError(f"{self.name}: tokens must be {valid}, received {tokens!r}")
        self.kind = kind
        self.positions = tuple(range(tokens) if isinstance(tokens, int) else sorted(set(tokens)))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if self.kind == "pooled":
            pooling, some = self._pooling(q, key_mask)
            summary = full_rows(pooling @ q, k, v, key_mask)
            return star(q, k, v, pooling @ k, summary, some, None, key_mask)
        at = self._positions(q)
        real = None if key_mask is None else key_mask[:, at]
        own = q.new_ones(q.shape[2], dtype=torch.bool).index_fill(0, at, False)  # a global position sees itself as such
        out = star(q, k, v, k[:, :, at], v[:, :, at], real, own, key_mask)
        rows = full_rows(q[:, :, at], k, v, key_mask)
        if real is not None:  # a masked position is no global token
            rows = torch.where(real[:, None, :, None], rows, out[:, :, at])
        return out.index_copy(2, at, rows)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        position = torch.arange(q.shape[2], device=q.device)
        if self.kind == "pooled":
            pooling, some = self._pooling(q, key_mask)
            every = torch.ones(1, 1, 1, q.shape[2], dtype=torch.bool, device=q.device)
            summary = dense_softmax(pooling @ q, k, every, key_mask)
            itself = (position[:, None] == position).expand(q.shape[0], 1, -1, -1)
            if key_mask is not None:
                itself = itself & key_mask[:, None, None]
            seen = torch.cat([some[:, None, None].expand(-1, -1, q.shape[2], -1), itself], dim=-1)
            weights = dense_softmax(q, torch.cat([pooling @ k, k], dim=2), seen)
            groups = pooling.shape[2]
            return weights[..., :groups] @ summary + weights[..., groups:]
        special = torch.zeros(1, q.shape[2], dtype=torch.bool, device=q.device).index_fill(1, self._positions(q), True)
        if key_mask is not None:
            special = special & key_mask
        visible = (position[:, None] == position) | special[:, None, :, None] | special[:, None, None]
        return dense_softmax(q, k, visible, key_mask)

    def _positions(self, q: Tensor) -> Tensor:
        return torch.tensor([p for p in self.positions if p < q.shape[2]], dtype=torch.long, device=q.device)

    def _pooling(self, q: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """(batch, 1, groups, n) means over runs of each sample's real tokens, and which groups have any (batch, groups)."""
        groups = len(self.positions)
        real = q.new_ones(q.shape[0], q.shape[2]) if key_mask is None else key_mask.to(q.dtype)
        rank = real.long().cumsum(dim=1) - 1
        group = rank.clamp_min(0) * groups // real.long().sum(dim=1, keepdim=True).clamp_min(1)
        member = (group[:, None] == torch.arange(groups, device=q.device)[:, None]) & (real[:, None] > 0)
        sizes = member.sum(dim=-1, keepdim=True)
        return (member / sizes.clamp_min(1)).to(q.dtype)[:, None], sizes[..., 0] > 0


def star(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    centre_k: Tensor,
    centre_v: Tensor,
    centre_mask: Tensor | None,
    own: Tensor | None,
    key_mask: Tensor | None,
) -> Tensor:
    """Every query over the centre's keys (batch, heads, g, d) and, where `own` (n) says so, its own key, under one softmax."""
    scale = q.shape[-1] ** -0.5
    wide = torch.promote_types(q.dtype, torch.float32)  # for softmax statistics
    centre = (q @ centre_k.mT).to(wide) * scale
    itself = (q * k).sum(dim=-1, keepdim=True, dtype=wide) * scale
    if centre_mask is not None:
        centre = centre.masked_fill(~centre_mask[:, None, None], -torch.inf)
    if own is not None:
        itself = itself.masked_fill(~own[:, None], -torch.inf)
    if key_mask is not None:
        itself = itself.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    scores = torch.cat([centre, itself], dim=-1)
    empty = (scores == -torch.inf).all(dim=-1, keepdim=True)
    weights = scores.masked_fill(empty, 0).softmax(dim=-1).masked_fill(empty, 0).to(q.dtype)
    return weights[..., :-1] @ centre_v + weights[..., -1:] * v
