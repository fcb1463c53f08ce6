"""Full attention that does its work twice: a ruler whose length is known, for `aa.py`."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench


@attnbench.register(
    "twice", supports=attnbench.Supports(time=attnbench.Growth("n^2 d", 2.0), memory=attnbench.Growth("n d", 1.0))
)
class Twice(attnbench.Variant):
    """The mean of two equal results."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return (scaled_dot_product_attention(q, k, v) + scaled_dot_product_attention(q, k, v)) / 2
