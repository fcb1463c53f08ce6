"""Full attention by the explicit matrix: every score is stored, so that scores and normalisers can be exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from einops import einsum, rearrange
from torch import Tensor, nn
from torch.nn.functional import dropout

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.errors import UserError, nearest
from attnbench.registry import register

SCORES = ("scaled-dot", "dot", "additive")
NORMALISERS = ("softmax", "relu")


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        causal=True,
        cross=True,
        padding=True,
        dropout=True,
        time=Growth("n^2 d", 2.0),
        memory=Growth("n^2 d" if options["score"] == "additive" else "n^2", 2.0),
        exact_when={"score": "scaled-dot", "normaliser": "softmax", "top_k": None},
    )


@register("full-naive", supports=supports)
class FullNaive(Variant):
    """Full attention that stores its matrix.

    out = normalise(s) v,    over the visible keys j of query i, of which `top_k` keeps those of the k largest scores

    s_ij = q_i . k_j / sqrt(head_dim)            "scaled-dot"
    s_ij = q_i . k_j                             "dot"
    s_ij = u . tanh(W q_i + U k_j)               "additive", with W, U (head_dim, head_dim) and u (head_dim) of each head
    normalise(s)_ij = exp(s_ij) / sum_j exp(s_ij)               "softmax"
    normalise(s)_ij = max(s_ij, 0) / number of keys kept        "relu"

    q (batch, heads, n_q, head_dim), k and v (batch, kv_heads, n_k, head_dim). Causal with n_q != n_k aligns the last query
    with the last key. A query that sees no key gets zeros under either normaliser.

    Args:
        score: "scaled-dot", "dot" or "additive".
        normaliser: "softmax" or "relu".
        top_k: how many keys a query keeps; None: all.

    Sources: Vaswani et al. 2017, "Attention Is All You Need", equation 1; Bahdanau et al. 2015, "Neural Machine Translation
    by Jointly Learning to Align and Translate", section A.1.2 (additive); Wortsman et al. 2023, "Replacing softmax with
    ReLU in Vision Transformers", section 3 (there divided by the sequence length); Zhao et al. 2019, "Explicit Sparse
    Transformer", equation 5 (top k).
    """

    def __init__(
        self, *, score: str = "scaled-dot", normaliser: str = "softmax", top_k: int | None = None, **common: Any
    ) -> None:
        super().__init__(**common)
        for option, value, valid in (("score", score, SCORES), ("normaliser", normaliser, NORMALISERS)):
            if value not in valid:
                raise UserError(
                    f"full-naive: {option} must be one of {', '.join(valid)}, received {value!r}{nearest(value, valid)}"
                )
        if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
            raise UserError(f"full-naive: top_k must be None or a whole number of at least 1, received {top_k!r}")
        self.score, self.normaliser, self.top_k = score, normaliser, top_k
        if score == "additive":
            square = (self.heads, self.head_dim, self.head_dim)
            self.query_map = nn.Parameter(torch.randn(square) * self.head_dim**-0.5)
            self.key_map = nn.Parameter(torch.randn(square) * self.head_dim**-0.5)
            self.direction = nn.Parameter(torch.randn(square[:2]) * self.head_dim**-0.5)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        scores = self._scores(q, k)
        kept = self._visible(scores, key_mask)
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            best = (scores if kept is None else scores.masked_fill(~kept, -torch.inf)).topk(self.top_k, dim=-1).indices
            among = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)
            kept = among if kept is None else kept & among
        weights = self._normalise(scores, kept)
        return dropout(weights, self.dropout, self.training).to(v.dtype) @ v

    def _scores(self, q: Tensor, k: Tensor) -> Tensor:
        """(batch, heads, n_q, n_k), in float32 at least."""
        wide = torch.promote_types(q.dtype, torch.float32)
        q, k = q.to(wide), k.to(wide)
        if self.score == "additive":
            query = rearrange(q @ self.query_map.to(wide), "batch heads n_q width -> batch heads n_q 1 width")
            key = rearrange(k @ self.key_map.to(wide), "batch heads n_k width -> batch heads 1 n_k width")
            features, direction = torch.tanh(query + key), self.direction.to(wide)
            return einsum(features, direction, "batch heads n_q n_k width, heads width -> batch heads n_q n_k")
        scale = self.head_dim**-0.5 if self.score == "scaled-dot" else 1.0
        return (q * scale) @ k.transpose(-1, -2)

    def _visible(self, scores: Tensor, key_mask: Tensor | None) -> Tensor | None:
        """bool, broadcastable to (batch, heads, n_q, n_k); None where every query sees every key."""
        visible = None if key_mask is None else key_mask[:, None, None, :]
        if self.causal:
            n_q, n_k = scores.shape[-2:]
            below = torch.ones(n_q, n_k, dtype=torch.bool, device=scores.device).tril(n_k - n_q)
            visible = below if visible is None else visible & below
        return visible

    def _normalise(self, scores: Tensor, kept: Tensor | None) -> Tensor:
        if kept is None:
            return scores.relu() / scores.shape[-1] if self.normaliser == "relu" else scores.softmax(dim=-1)
        if self.normaliser == "relu":
            return torch.where(kept, scores.relu(), 0) / kept.sum(dim=-1, keepdim=True).clamp(min=1)
        # A softmax over nothing is undefined: such a row is taken over all keys, and its weights are put to zero.
        seeing = kept.any(dim=-1, keepdim=True)
        weights = scores.masked_fill(~kept & seeing, -torch.inf).softmax(dim=-1)
        return torch.where(seeing, weights, 0)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        q_wide, k_wide, n_q, n_k = q.double(), k.double(), q.shape[2], k.shape[2]
        if self.score == "additive":
            queries = torch.einsum("bhid,hde->bhie", q_wide, self.query_map.double())
            keys = torch.einsum("bhjd,hde->bhje", k_wide, self.key_map.double())
            pairs = (queries[:, :, :, None] + keys[:, :, None]).tanh()
            scores = torch.einsum("bhije,he->bhij", pairs, self.direction.double())
        else:
            scores = torch.einsum("bhid,bhjd->bhij", q_wide, k_wide)
            scores = scores / self.head_dim**0.5 if self.score == "scaled-dot" else scores
        query, key = torch.arange(n_q, device=q.device)[:, None], torch.arange(n_k, device=q.device)
        kept = (key - n_k <= query - n_q) | torch.tensor(not self.causal, device=q.device)
        kept = kept if key_mask is None else kept & key_mask[:, None, None, :]
        if self.top_k is not None:
            better = (scores[..., None, :] > scores[..., :, None]) & kept[..., None, :]
            kept = kept & (better.sum(dim=-1) < self.top_k)
        if self.normaliser == "relu":
            weights = scores.clamp(min=0) * kept
            return (weights / kept.sum(dim=-1, keepdim=True).clamp(min=1)).to(q.dtype)
        largest = torch.where(kept, scores, -1e300).amax(dim=-1, keepdim=True)
        weights = torch.where(kept, scores - largest, -torch.inf).exp()
        return (weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-300)).to(q.dtype)
