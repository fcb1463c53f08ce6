"""The arithmetic of one cache-sized piece, forward and backward: what every kernel of this package goes through.

A piece is a batch of tiles: c tiles of T queries, and for each tile one or more *parts*, sets of keys seen under one softmax.
Weights are powers of two, whose exponents are scores times log2(e): exp2 is several times faster than exp on a CPU.

Where no score can exceed `LIMIT` in magnitude (Cauchy-Schwarz on the norms of q and k), neither overflow nor underflow is
possible, and the row maximum needs no look-up. Elsewhere it is subtracted as usual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["LIMIT", "LOG2_E", "Mask", "Part", "accumulator", "attend", "attend_backward", "bounded"]

LOG2_E = math.log2(math.e)
LIMIT = 64.0  # 2^64 times 2^16 keys times large values is far from overflow; 2^-64 times small values, from underflow


class Mask(Protocol):
    """What a part hides: as zeros among the weights, or as -inf among the scores."""

    def zero_(self, weights: Tensor) -> None: ...

    def exclude_(self, scores: Tensor) -> None: ...


@dataclass
class Part:
    """Keys of a piece: k (c, W, d), v (c, W, e), an optional mask, and a buffer (c, T, W) for scores and weights."""

    k: Tensor
    v: Tensor
    mask: Mask | None
    weights: Tensor


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and softmax statistics."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def bounded(q: Tensor, k: Tensor, scale: float) -> bool:
    """Whether no product of a query and a key can leave the range in which the row maximum may stay unsubtracted."""
    if q.device.type != "cpu":  # the answer would stall the device for longer than the maximum takes
        return False
    longest = [torch.linalg.vector_norm(x, dim=-1, dtype=accumulator(x.dtype)).max() for x in (q, k)]
    return bool(longest[0] * longest[1] * scale * LOG2_E <= LIMIT)


def attend(q: Tensor, parts: Sequence[Part], out: Tensor, safe: bool) -> Tensor:
    """Writes the attention of q (c, T, d), scaled by scale * log2(e), into out (c, T, e); returns log2 of the sums (c, T, 1)."""
    for part in parts:
        torch.bmm(q, part.k.mT, out=part.weights)
    top = None if safe else _exclude(parts)
    total = None
    for part in parts:
        if top is not None:
            part.weights.sub_(top)
        part.weights.exp2_()
        if top is None and part.mask is not None:
            part.mask.zero_(part.weights)
        summed = part.weights.sum(dim=-1, keepdim=True)
        total = summed if total is None else total.add_(summed)
    assert total is not None
    lse = total.log2() if top is None else total.log2().add_(top)
    torch.bmm(parts[0].weights, parts[0].v, out=out)
    for part in parts[1:]:
        out.baddbmm_(part.weights, part.v)
    out.div_(total.masked_fill_(total == 0, 1))
    return lse


def attend_backward(
    q: Tensor, parts: Sequence[Part], lse: Tensor, grad: Tensor, delta: Tensor, safe: bool, scratch: Sequence[Tensor]
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Gradients of one piece: (dq, [(dk, dv) per part]), with respect to the scores' natural exponents.

    lse (c, T, 1) as `attend` returned it, grad (c, T, e) of out, delta (c, T, 1) the row sums of grad * out less the gradient
    of lse, scratch a second buffer (c, T, W) per part. dq and dk still lack the factors that belong to the scaling of q.
    """
    for part in parts:
        torch.bmm(q, part.k.mT, out=part.weights)
    if safe:  # weights stay unnormalised, and the smaller grad carries the row's factor
        factor = torch.exp2(-lse).masked_fill_(lse == -torch.inf, 0)
        grad, delta = grad * factor, delta * factor
    else:
        top = lse.masked_fill(lse == -torch.inf, 0)
    dq, others = None, []
    for part, buffer in zip(parts, scratch, strict=True):
        if not safe:
            if part.mask is not None:
                part.mask.exclude_(part.weights)
            part.weights.sub_(top)
        part.weights.exp2_()
        if safe and part.mask is not None:
            part.mask.zero_(part.weights)
        dv = torch.bmm(part.weights.mT, grad)
        torch.bmm(grad, part.v.mT, out=buffer)
        buffer.sub_(delta).mul_(part.weights)
        others.append((torch.bmm(buffer.mT, q), dv))
        dq = torch.bmm(buffer, part.k) if dq is None else dq.baddbmm_(buffer, part.k)
    assert dq is not None
    return dq, others


def _exclude(parts: Sequence[Part]) -> Tensor:
    """Puts what is hidden to -inf and returns the row maxima, 0 where nothing is visible."""
    top = None
    for part in parts:
        if part.mask is not None:
            part.mask.exclude_(part.weights)
        highest = part.weights.amax(dim=-1, keepdim=True)
        top = highest if top is None else torch.maximum(top, highest)
    assert top is not None
    return top.masked_fill_(top == -torch.inf, 0)
