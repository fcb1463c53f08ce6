"""Full attention that does its work twice: a ruler whose length is known, for `aa.py`."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench


@attnbench.register(
    "twice", supports=attnbench.Supports(time=attnbench.Growth("n^2 d", 2.0), memory=attnbench.Growth("n d", 1.0))
)
class Twice(attnbench.Variant):
    """The first result is dropped, so that nothing is done but the same work again: no sum, no further memory."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        scaled_dot_product_attention(q, k, v)
        return scaled_dot_product_attention(q, k, v)
