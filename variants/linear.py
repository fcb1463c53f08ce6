"""Linear attention: weights are products of positive features, so that sums over the keys replace the look at each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from attnbench.capabilities import Growth, Supports
from attnbench.contract import Variant
from attnbench.errors import UserError, nearest
from attnbench.kernels.prefix import Sums, explicit_weights, extend, linear_attention
from attnbench.registry import register

FEATURES = ("elu", "relu")


def supports(options: Mapping[str, Any]) -> Supports:
    return Supports(
        causal=True,
        cross=True,
        padding=True,
        decode=True,
        time=Growth("n d^2", 1.0),
        memory=Growth("n d", 1.0),
        sequential="n / 128" if options["causal"] else "1",
        notes=("relu: a query whose features share no direction with any key's gets zeros",),
    )


@register("linear", supports=supports)
class Linear(Variant):
    """Attention with a feature map in place of the softmax.

    out_i = sum_j phi(q_i)^T phi(k_j) v_j / sum_j phi(q_i)^T phi(k_j),    phi(x) = elu(x) + 1

    over the real keys j, and j <= i where causal. The causal form runs through the sequence with the sums
    S = sum_j phi(k_j) [v_j, 1]^T as its state, which is all that decoding keeps. Sums are in float32 at least.

    Args:
        feature: "elu" (elu(x) + 1, always above zero) or "relu".

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", equations 4 to 12.
    """

    def __init__(self, *, feature: str = "elu", **common: Any) -> None:
        super().__init__(**common)
        if feature not in FEATURES:
            raise UserError(
                f"linear: feature must be one of {', '.join(FEATURES)}, received {feature!r}{nearest(feature, FEATURES)}"
            )
        self.feature = feature

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return linear_attention(q, k, v, feature=self.feature, key_mask=key_mask, causal=self.causal)[0]

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        queries, keys = (elu(x.to(wide)) + 1 if self.feature == "elu" else x.to(wide).relu() for x in (q, k))
        return explicit_weights(queries, keys, key_mask=key_mask, causal=self.causal).to(q.dtype)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, **streams: Tensor
    ) -> tuple[Tensor, Sums]:
        q, k, v, key_mask, _ = self._prepared(q, k, v, key_mask, streams)
        return linear_attention(q, k, v, feature=self.feature, key_mask=key_mask, causal=True)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: Any, **streams: Tensor) -> tuple[Tensor, Sums]:
        q, k, v, _, _ = self._prepared(q, k, v, None, streams)
        return extend(state, q, k, v, feature=self.feature)
