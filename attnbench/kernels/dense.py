"""Full attention of a few queries, and the explicit matrix that the variants' dense definitions are written in."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench.kernels.pieces import accumulator

__all__ = ["dense_softmax", "full_rows", "masked_attention"]


def dense_softmax(q: Tensor, k: Tensor, visible: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """The (batch, heads, n_q, n_k) softmax weights over what is visible, with rows of zeros where nothing is.

    visible: bool, broadcastable to the result, True where a query sees a key. key_mask (batch, n_k) hides further keys.
    """
    if key_mask is not None:
        visible = visible & key_mask[:, None, None, :]
    scores = (q @ k.mT).to(accumulator(q.dtype)) * q.shape[-1] ** -0.5
    empty = ~visible.any(dim=-1, keepdim=True)
    weights = scores.masked_fill(~(visible | empty), -torch.inf).softmax(dim=-1)
    return weights.masked_fill(empty, 0).to(q.dtype)


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, dropout: float = 0.0, grouped: bool = False
) -> Tensor:
    """Fused attention over what `mask` (bool, broadcastable to (batch, heads, n_q, n_k)) shows; zeros where it shows nothing.

    A softmax over nothing is undefined, so that such a query sees all keys first. They must be finite. grouped: k and v have
    fewer heads than q.
    """
    empty = ~mask.any(dim=-1, keepdim=True)
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask | empty, dropout_p=dropout, enable_gqa=grouped)
    return out.masked_fill(empty, 0)


def full_rows(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """Full attention of q over all real keys, zeros for a sample that has none: for a few queries beside a sparse pattern."""
    if key_mask is None:
        return scaled_dot_product_attention(q, k, v)
    return masked_attention(q, k, v, key_mask[:, None, None, :])
