"""Clustered attention: a query attends to the keys that chose the same centroid, and to all of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.kernels.centroids import follow, nearest, random_centroids
from attnbench.kernels.gathered import gathered_attention
from attnbench.registry import register

DEFAULT_LENGTH = 1024  # sizes the clusters where no max_len is given


class Cache(NamedTuple):
    """Decoding state: the keys and values met so far, and the cluster of each key (that of a masked one: none)."""

    k: Tensor
    v: Tensor
    clusters: Tensor


@register(
    "clustering",
    supports=Supports(
        causal=True,
        cross=True,
        padding=True,
        decode=True,
        time=Growth("n clusters d + n^2 d / clusters", 1.5),
        memory=Growth("n d", 1.0),
        path="unbounded: tokens of different clusters never meet in one layer",
        exact_when={"clusters": 1},
        small={"clusters": 4},
        notes=(
            "the growth is for balanced clusters; if all tokens fall into one, the work is that of full attention",
            "a query whose cluster holds no visible key gets zeros",
            "in training the centroids move when the backward pass is over, once per forward pass",
        ),
    ),
)
class Clustering(Variant):
    """Attention inside clusters, exactly: nothing is dropped to balance them.

    cluster(x) = argmax_c cos(x, centroid_c), for queries and keys alike, each head with centroids of its own

    out_i = softmax over {j : cluster(k_j) = cluster(q_i), and j <= i where causal} of q_i k_j^T / sqrt(head_dim), times v_j

    Strictly causal, since a token chooses its centroid alone. The centroids are a buffer; in training they follow the tokens
    that chose them by moving average.

    Args:
        clusters: number of centroids per head; "sqrt" means the root of max_len (of 1,024 where there is none).
        decay: of the moving average.

    Source: Vyas et al. 2020, "Fast Transformers with Clustered Attention", for the idea; the k-means of Roy et al. 2020,
    "Efficient Content-Based Sparse Attention with Routing Transformers", section 4.1, without its balancing.
    """

    centroids: Tensor

    def __init__(self, *, clusters: int | str = "sqrt", decay: float = 0.999, **common: Any) -> None:
        super().__init__(**common)
        if clusters != "sqrt" and (not isinstance(clusters, int) or isinstance(clusters, bool) or clusters < 1):
            raise ValueError(
                f"{self.name}: clusters must be a whole number of at least 1 or 'sqrt', received {clusters!r}"
            )
        if not 0 <= decay < 1:
            raise ValueError(f"{self.name}: decay must lie in [0, 1), received {decay!r}")
        self.clusters = math.isqrt(self.max_len or DEFAULT_LENGTH) if isinstance(clusters, str) else clusters
        self.decay = decay
        self.register_buffer("centroids", random_centroids(self.heads, self.clusters, self.head_dim))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        chosen_q, chosen_k, real_q = self.assign(q, k, key_mask)
        (queries, query_ends), (keys, key_ends) = self._sorted(chosen_q), self._sorted(chosen_k)
        tiles = torch.stack([*query_ends, *key_ends], dim=-1)[None]
        out, _ = gathered_attention(q, k, v, queries, keys, tiles, causal=self.causal)
        if self.training:
            # A masked token chose the cluster past the last, which is nobody's; its unit vector is not counted.
            clamp = self.clusters - 1
            members = [(q, chosen_q.clamp_max(clamp), real_q), (k, chosen_k.clamp_max(clamp), key_mask)]
            follow(self.centroids, out, members, self.decay)
        return out

    def assign(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The clusters of queries and keys (batch, heads, n), `clusters` for a masked one; and which queries are real."""
        chosen_q, chosen_k, real_q = nearest(q, self.centroids), nearest(k, self.centroids), None
        if key_mask is not None:
            chosen_k = chosen_k.masked_fill(~key_mask[:, None], self.clusters)
            if not self.cross and q.shape[2] <= k.shape[2]:  # the queries are the last of the keys' tokens
                real_q = key_mask[:, k.shape[2] - q.shape[2] :]
                chosen_q = chosen_q.masked_fill(~real_q[:, None], self.clusters)
        return chosen_q, chosen_k, real_q

    def _sorted(self, chosen: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The tokens' positions by cluster, in order within each, and where in that list each cluster starts and stops."""
        ordered, positions = chosen.sort(dim=-1, stable=True)
        edges = torch.arange(self.clusters + 1, device=chosen.device).expand(*chosen.shape[:2], -1).contiguous()
        edges = torch.searchsorted(ordered, edges)
        return positions, (edges[..., :-1], edges[..., 1:])

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        chosen_q, chosen_k, _ = self.assign(q, k, key_mask)
        n_q, n_k = q.shape[2], k.shape[2]
        visible = (chosen_q[..., :, None] == chosen_k[..., None, :]) & (chosen_q < self.clusters)[..., None]
        if self.causal:
            visible = visible & torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril(n_k - n_q)
        return _weights(q, k, visible)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, Cache]:
        out = self(q, k, v, key_mask=key_mask)
        q, k, v, _, _ = self._prepared(q, k, v, key_mask, streams)
        return out, Cache(k, v, self.assign(q, k, key_mask)[1])

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Cache]:
        q, k, v, _, _ = self._prepared(q, k, v, None, streams)
        chosen_q, chosen_k, _ = self.assign(q, k, None)
        old = Cache(*state)
        state = Cache(
            torch.cat([old.k, k], dim=2), torch.cat([old.v, v], dim=2), torch.cat([old.clusters, chosen_k], dim=2)
        )
        weights = _weights(q, state.k, state.clusters[:, :, None] == chosen_q[..., None])
        return (weights.to(v.dtype) @ state.v), state


def _weights(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) over what is visible; zeros where nothing is."""
    scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    some = visible.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(visible | ~some), -torch.inf).softmax(dim=-1)
    return torch.where(some, weights, 0).to(q.dtype)
