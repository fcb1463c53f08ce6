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
        chosen_q, chosen_k = nearest(q, self.centroids), self.chosen(k, key_mask)
        (queries, query_ends), (keys, key_ends) = self._sorted(chosen_q), self._sorted(chosen_k)
        tiles = torch.stack([*query_ends, *key_ends], dim=-1)[None]
        out, _ = gathered_attention(q, k, v, queries, keys, tiles, causal=self.causal)
        if self.training:
            # In self-attention a key mask marks the real queries too; here n_q < n_k means the last tokens of one sequence.
            real_q = None if key_mask is None or self.cross else key_mask[:, -q.shape[2] :]
            members = [(q, chosen_q, real_q), (k, chosen_k.clamp_max(self.clusters - 1), key_mask)]
            follow(self.centroids, out, members, self.decay)
        return out

    def chosen(self, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """The cluster of each key (batch, heads, n), and for a masked one the number past the last, which is nobody's."""
        chosen = nearest(k, self.centroids)
        return chosen if key_mask is None else chosen.masked_fill(~key_mask[:, None], self.clusters)

    def _sorted(self, chosen: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The tokens' positions by cluster, in order within each, and where in that list each cluster starts and stops."""
        ordered, positions = chosen.sort(dim=-1, stable=True)
        edges = torch.arange(self.clusters + 1, device=chosen.device).expand(*chosen.shape[:2], -1).contiguous()
        edges = torch.searchsorted(ordered, edges)
        return positions, (edges[..., :-1], edges[..., 1:])

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        chosen_q, chosen_k = nearest(q, self.centroids), self.chosen(k, key_mask)
        n_q, n_k = q.shape[2], k.shape[2]
        visible = chosen_q[..., :, None] == chosen_k[..., None, :]
        if self.causal:
            visible = visible & torch.ones(n_q, n_k, dtype=torch.bool, device=q.device).tril(n_k - n_q)
        return _weights(q, k, visible)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, Cache]:
        out = self(q, k, v, key_mask=key_mask)
        q, k, v, _, _ = self._prepared(q, k, v, key_mask, streams)
        return out, Cache(k, v, self.chosen(k, key_mask))

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Cache]:
        q, k, v, _, _ = self._prepared(q, k, v, None, streams)
        new = Cache(k, v, self.chosen(k, None))
        state = Cache(*(torch.cat(pair, dim=2) for pair in zip(state, new, strict=True)))
        visible = nearest(q, self.centroids)[..., None] == state.clusters[:, :, None]
        return _weights(q, state.k, visible) @ state.v, state


def _weights(q: Tensor, k: Tensor, visible: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) over what is visible; zeros where nothing is."""
    scores = (q @ k.mT).to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    some = visible.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(visible | ~some), -torch.inf).softmax(dim=-1)
    return torch.where(some, weights, 0).to(q.dtype)
