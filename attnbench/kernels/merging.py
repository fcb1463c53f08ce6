"""Joining partial results: attention over a union of disjoint key sets, from attention over each."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["merge"]


def merge(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """One softmax over the union of disjoint sets of keys.

    out = sum_p exp(lse_p - lse) out_p,  lse = log sum_p exp(lse_p)

    Each part is (out (..., n, d), lse (..., n)) as `block_attention` returns it; so is the result. A row that is empty in
    every part comes out as zeros with an lse of -inf.
    """
    tops = torch.stack([lse for _, lse in parts])
    top = tops.detach().amax(dim=0)
    top = top.masked_fill(top == -torch.inf, 0)
    weights = (tops - top).exp()
    total = weights.sum(dim=0)
    empty = total == 0
    shares = weights / total.masked_fill(empty, 1)
    out = sum(part.to(shares.dtype) * share[..., None] for (part, _), share in zip(parts, shares, strict=True))
    lse = total.masked_fill(empty, 1).log() + top
    return out.to(parts[0][0].dtype), lse.masked_fill(empty, -torch.inf)
