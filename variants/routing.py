"""Routing attention: each centroid takes the queries and the keys nearest to it, equally many, and joins them."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels.centroids import closest, follow, random_centroids
from attnbench.kernels.gathered import gathered_attention
from attnbench.registry import register

DEFAULT_LENGTH = 1024  # sizes the clusters where no max_len is given


@register(
    "routing",
    supports=Supports(
        padding=True,
        time=Growth("n clusters d + n^2 d / clusters", 1.5),
        memory=Growth("n d", 1.0),
        path="unbounded: tokens that no centroid takes both never meet in one layer",
        exact_when={"clusters": 1},
        small={"clusters": 4},
        notes=(
            "no causal form: which tokens are among a centroid's nearest depends on later tokens, so masking them leaks",
            "a query that several centroids take sees all their keys under one softmax (a key met twice counts twice), where "
            "public code adds or averages the centroids' outputs; a query that none takes gets zeros",
            "keys are routed as queries are, and q and k enter the products as they come, without the paper's layer norm",
            "in training the centroids move when the backward pass is over, once per forward pass",
        ),
    ),
)
class Routing(Variant):
    """Attention among the tokens that a centroid takes: as many for each, its nearest.

    queries(c) = the w queries of largest cos(q_i, centroid_c), keys(c) likewise, w = ceil(n / clusters)

    out_i = softmax over the keys of all c with i in queries(c) of q_i k_j^T / sqrt(head_dim), times v_j

    n counts a sample's real tokens. The centroids are a buffer, one set per head; in training each follows, by moving average,
    the tokens that it is the nearest centroid of.

    Args:
        window: tokens that a centroid takes at length max_len (at 1,024 where there is none), which settles the number of
            centroids; None means the root of that length, where the cost is least.
        clusters: the number of centroids itself; `window` then says nothing.
        decay: of the moving average.

    Source: Roy et al. 2020, "Efficient Content-Based Sparse Attention with Routing Transformers", section 4.1, algorithm 1.
    """

    centroids: Tensor

    def __init__(
        self, *, window: int | None = None, clusters: int | None = None, decay: float = 0.999, **common: Any
    ) -> None:
        super().__init__(**common)
        for option, value in (("window", window), ("clusters", clusters)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"{self.name}: {option} must be a whole number of at least 1, received {value!r}")
        if not 0 <= decay < 1:
            raise ValueError(f"{self.name}: decay must lie in [0, 1), received {decay!r}")
        longest = self.max_len or DEFAULT_LENGTH
        self.clusters = clusters or math.ceil(longest / (window or math.isqrt(longest)))
        self.decay = decay
        self.register_buffer("centroids", random_centroids(self.heads, self.clusters, self.head_dim))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        moves = self.training and torch.is_grad_enabled()  # else `follow` would do nothing
        (queries, asks), (keys, gives) = (self._routed(x, key_mask, moves) for x in (q, k))
        out, _ = gathered_attention(q, k, v, queries.flatten(2), keys.flatten(2), self._tiles(q, key_mask))
        if asks is not None and gives is not None:
            follow(self.centroids, out, [(q, asks, key_mask), (k, gives, key_mask)], self.decay)
        return out

    def taken(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """The positions that each centroid takes (batch, heads, clusters, w); under a mask the nearest first."""
        return self._routed(x, key_mask, False)[0]

    def _routed(self, x: Tensor, key_mask: Tensor | None, choices: bool) -> tuple[Tensor, Tensor | None]:
        return closest(x, self.centroids, -(-x.shape[2] // self.clusters), key_mask, choices)

    def _width(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        """(batch,): how many tokens a centroid takes of each sample's real ones."""
        count = torch.full(q.shape[:1], q.shape[2], device=q.device) if key_mask is None else key_mask.sum(dim=-1)
        return (count + self.clusters - 1) // self.clusters

    def _tiles(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        """(clusters, batch, heads, 1, 4): one tile per centroid, a pass of its own since centroids share tokens."""
        start = -(-q.shape[2] // self.clusters) * torch.arange(self.clusters, device=q.device)[:, None]
        stop = start + self._width(q, key_mask)
        start = start.expand_as(stop)
        return torch.stack([start, stop, start, stop], dim=-1)[:, :, None, None].expand(-1, -1, self.heads, -1, -1)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        counts = q.new_zeros(*q.shape[:3], k.shape[2])
        queries, keys = self.taken(q, key_mask), self.taken(k, key_mask)
        kept = torch.arange(queries.shape[-1], device=q.device) < self._width(q, key_mask)[:, None, None]
        for c in range(self.clusters):
            asks, gives = (
                q.new_zeros(q.shape[:3]).scatter_(2, taken[:, :, c], kept.to(q.dtype).expand_as(taken[:, :, c]))
                for taken in (queries, keys)
            )
            counts += asks[..., :, None] * gives[..., None, :]  # in how many centroids the two meet
        some = counts.any(dim=-1, keepdim=True)
        scores = (q @ k.mT) * self.head_dim**-0.5 + counts.log()
        return torch.where(some, scores.masked_fill(~some, 0).softmax(dim=-1), 0)
