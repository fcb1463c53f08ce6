"""Performer: linear attention whose positive random features estimate the softmax without bias."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.errors import UserError
from attnbench.kernels.prefix import Sums, explicit_weights, extend, linear_attention
from attnbench.registry import register


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        causal=True,
        cross=True,
        padding=True,
        decode=True,
        time=Growth("n features d", 1.0),
        memory=Growth("n d + features d", 1.0),
        sequential="n / 128" if options["causal"] else "1",
        small={"features": 16},
        notes=(
            "an estimate of full attention: its error falls with the number of features and grows with the norms of q and k",
            "no constant is added to the features; each token's largest exponent is taken out instead, which is exact",
        ),
    )


@register("performer", supports=supports)
class Performer(Variant):
    """FAVOR+ attention.

    out_i = sum_j phi(q_i)^T phi(k_j) v_j / sum_j phi(q_i)^T phi(k_j)
    phi(x) = exp(W y - |y|^2 / 2),    y = x / head_dim^(1/4)

    over the real keys j, and j <= i where causal. The rows of W (features, head_dim) are orthogonal in blocks of head_dim,
    with the lengths of normal vectors, so that phi(q)^T phi(k) / features estimates exp(q^T k / sqrt(head_dim)). W is a buffer,
    drawn at construction and again by `redraw` alone.

    Args:
        features: number of random features; None means head_dim ln(head_dim), and head_dim at least.

    Source: Choromanski et al. 2021, "Rethinking Attention with Performers", equations 5 to 8 and section 2.4.
    """

    projection: Tensor

    def __init__(self, *, features: int | None = None, **common: Any) -> None:
        super().__init__(**common)
        if features is None:
            features = max(self.head_dim, int(self.head_dim * math.log(self.head_dim)))
        if not isinstance(features, int) or features < 1:
            raise UserError(f"performer: features must be a whole number of at least 1 or None, received {features!r}")
        self.features = features
        self.register_buffer("projection", torch.empty(features, self.head_dim))
        self.redraw()

    @torch.no_grad()
    def redraw(self, generator: torch.Generator | None = None) -> None:
        """Draws new random features, in place, from `generator` (None: torch's global one)."""
        blocks = -(-self.features // self.head_dim)
        normal = torch.randn(blocks, self.head_dim, self.head_dim, generator=generator, dtype=torch.float64)
        q, r = torch.linalg.qr(normal)
        q = q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]  # else the signs are LAPACK's, and the estimate is biased
        directions = q.flatten(0, 1)[: self.features]
        lengths = torch.randn(self.features, self.head_dim, generator=generator, dtype=torch.float64).norm(dim=1)
        self.projection.copy_(directions * lengths[:, None])

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return self._attend(q, k, v, key_mask)[0]

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Sums]:
        return linear_attention(
            q, k, v, feature="random", projection=self.projection, key_mask=key_mask, causal=self.causal
        )

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        queries, keys = (self._exponents(x.to(wide)) for x in (q, k))
        # A factor of a query's row cancels, and so does one that all keys share.
        queries = (queries - queries.amax(dim=-1, keepdim=True)).exp()
        keys = (keys - keys.amax(dim=(-2, -1), keepdim=True)).exp()
        return explicit_weights(queries, keys, key_mask=key_mask, causal=self.causal).to(q.dtype)

    def _exponents(self, x: Tensor) -> Tensor:
        scaled = x * self.head_dim**-0.25
        return scaled @ self.projection.to(x.dtype).T - scaled.square().sum(dim=-1, keepdim=True) / 2

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, Sums]:
        q, k, v, key_mask, _ = self._prepared(q, k, v, key_mask, streams)
        return self._attend(q, k, v, key_mask)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Sums]:
        q, k, v, _, _ = self._prepared(q, k, v, None, streams)
        return extend(state, q, k, v, feature="random", projection=self.projection)
