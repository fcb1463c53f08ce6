"""How tokens (batch, heads, n, width) lie in memory: token by token, as rows of all heads, in whole blocks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["empty_tokens", "flat_rows", "whole_blocks"]


def empty_tokens(x: Tensor, n: int | tuple[int, ...], width: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty (batch, heads, n, width) beside x (batch, heads, ...) that lies in memory token by token, as projections do.

    n may be several axes, such as blocks and places in a block. Joining its heads copies nothing. It is nobody's view, so that
    autograd may add other gradients to it in place.
    """
    batch, heads = x.shape[:2]
    axes = n if isinstance(n, tuple) else (n,)
    steps = [heads * width]  # from a token to the next, from a block to the next, ..., from a sample to the next
    for size in reversed(axes):
        steps.insert(0, steps[0] * size)
    strides = (steps[0], width, *steps[1:], 1)
    return x.new_empty_strided((batch, heads, *axes, width), strides, dtype=dtype or x.dtype)


def flat_rows(x: Tensor, width: int, dtype: torch.dtype) -> Tensor | None:
    """x (batch, heads, n, w) as (batch * heads, n, width), to be written into; None where that would be a copy."""
    if x.shape[3] != width or x.dtype != dtype or (x.shape[0] > 1 and x.stride(0) != x.shape[1] * x.stride(1)):
        return None
    return x.flatten(0, 1)


def whole_blocks(x: Tensor, size: int) -> Tensor:
    """x (..., n, width) with zeros behind it up to a multiple of `size`; x itself where nothing is missing."""
    missing = -x.shape[-2] % size
    return pad(x, (0, 0, 0, missing)) if missing else x  # padding by nothing would copy
