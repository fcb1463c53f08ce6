"""The arithmetic of one cache-sized piece, forward and backward: what every kernel of this package goes through.

A piece is a batch of c tiles of T queries. Each tile sees one or more *parts*, disjoint sets of W keys, under one softmax.
Scores lie transposed, keys by queries (c, W, T): both products with keys then read their operands in memory order, which is
what small matrix products on a CPU are most sensitive to.

Where no score can exceed `LIMIT` in magnitude (Cauchy-Schwarz on the norms of q and k), neither overflow nor underflow is
possible, and the row maximum need not be looked up. Elsewhere it is subtracted as usual.

Scores are made in units of log 2, and weights by exp2: torch's exp goes to a vendor's library, which on some CPUs takes four
times as long.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

__all__ = [
    "LIMIT",
    "LOG2_E",
    "Mask",
    "Part",
    "accumulator",
    "attend",
    "attend_backward",
    "bounded",
    "dots",
    "piece_bytes",
    "piece_scores",
    "unchanged_by_autocast",
]

F = TypeVar("F", bound=Callable[..., Any])
FEW = 2**12  # scores that are always worth a piece
LOG2_E = math.log2(math.e)
LIMIT = 44.0  # e^44 summed over a million keys times large values is far from overflow, e^-44 times small ones from underflow


class Mask(Protocol):
    """What a part hides: as zeros among the weights, or as -inf among the scores (both (c, W, T))."""

    def zero_(self, weights: Tensor) -> None: ...

    def exclude_(self, scores: Tensor) -> None: ...


class Part(Protocol):
    """A set of keys of a piece: k (c, W, d) and v (c, W, e) in the accumulating dtype, and two buffers (c, W, T)."""

    k: Tensor
    v: Tensor
    masks: Sequence[Mask]
    weights: Tensor
    scratch: Tensor

    def accumulate(self, total: Tensor, weights: Tensor, rows: Tensor) -> None:
        """Adds weights (c, W, T) @ rows (c, T, d) to the gradient `total` at the places of this part's keys."""


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and softmax statistics."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def piece_bytes(device: torch.device) -> int:
    """How large the scores of one piece may be: on a CPU what its caches hold, elsewhere what keeps the device busy."""
    return 2**22 if device.type == "cpu" else 2**27


def piece_scores(x: Tensor, share: float = 1.0) -> int:
    """How many scores one piece may have beside inputs like x: a share of the budget, and never more than x has elements.

    So the memory of a piece grows no faster than its inputs do. A share below 1 leaves room in the caches for what is gathered.
    """
    return min(int(share * piece_bytes(x.device)) // accumulator(x.dtype).itemsize, max(x.numel(), FEW))


def unchanged_by_autocast(operator: F) -> F:
    """Decorates an operator's body: inputs have the wanted dtypes by then, and backward may run under autocast as well."""

    @functools.wraps(operator)
    def body(q: Tensor, *args: Any) -> Any:
        with torch.autocast(q.device.type, enabled=False):
            return operator(q, *args)

    return body  # type: ignore[return-value]


def bounded(q: Tensor, k: Tensor, scale: float) -> bool:
    """Whether no product of a query and a key can leave the range in which the row maximum may stay unsubtracted."""
    if q.device.type != "cpu":  # the answer would stall the device for longer than the maximum takes
        return False
    rows = (x.permute(*sorted(range(x.dim() - 1), key=x.stride, reverse=True), -1) for x in (q, k))  # in memory's order
    longest = [torch.linalg.vector_norm(x, dim=-1, dtype=accumulator(x.dtype)).max() for x in rows]
    return bool(longest[0] * longest[1] * abs(scale) <= LIMIT)


@unchanged_by_autocast
def dots(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums of x * y (batch, heads, n, width) along the last axis, (batch, heads, n), a stretch of tokens at a time."""
    total = x.new_empty(x.shape[:3], dtype=dtype)
    tokens = max(1, piece_scores(x, 0.125) * x.shape[2] // max(1, x.numel()))
    for stretch, *rows in zip(total.split(tokens, 2), x.split(tokens, 2), y.split(tokens, 2), strict=True):
        torch.sum(torch.mul(*(row.to(dtype) for row in rows)), dim=-1, out=stretch)
    return total


def attend(q: Tensor, parts: Sequence[Part], out: Tensor, lse: Tensor, scale: float, safe: bool) -> None:
    """Writes the attention of q (c, T, d) into out (c, T, e), and the log of the sums into lse (c, T).

    q is in the accumulating dtype; scores are scale * q . k.
    """
    _scores(q, parts, scale, safe)
    top = None if safe else _highest(parts)
    total = None
    for part in parts:
        _weights(part, top)
        summed = part.weights.sum(dim=1)
        total = summed if total is None else total.add_(summed)
    mixed = torch.bmm(parts[0].weights.mT, parts[0].v)
    for part in parts[1:]:
        mixed.baddbmm_(part.weights.mT, part.v)
    assert total is not None
    torch.log(total, out=lse)
    if top is not None:
        lse.add_(top.squeeze(1), alpha=1 / LOG2_E)
    # What sees nothing adds up to zero, exactly, and stays so; all other sums are at least e^-LIMIT.
    torch.div(mixed, total.clamp_min_(torch.finfo(total.dtype).tiny)[..., None], out=out)


def attend_backward(
    q: Tensor,
    parts: Sequence[Part],
    lse: Tensor,
    grad: Tensor,
    delta: Tensor,
    scale: float,
    safe: bool,
    dk: Tensor,
    dv: Tensor,
) -> Tensor:
    """Adds one piece's gradients to dk and dv, and returns dq (c, T, d).

    q (c, T, d) as `attend` took it, lse (c, T) as it returned it, grad (c, T, e) of out, and delta (c, T), the row sums of
    grad * out less the gradient of lse.
    """
    lse, delta = lse[:, None], delta[:, None] * scale
    seen = lse > -torch.inf
    _scores(q, parts, scale, safe)
    if safe:  # weights stay unnormalised, and the smaller grad carries the row's factor
        top, factor = None, torch.where(seen, (-lse).exp(), 0)
        grad, delta = grad * factor.mT, delta * factor
    else:
        top = torch.where(seen, lse, 0).mul_(LOG2_E)
    dq = None
    for part in parts:
        _weights(part, top)
        part.accumulate(dv, part.weights, grad)
        _product(part.v, grad, scale, part.scratch).sub_(delta).mul_(part.weights)
        part.accumulate(dk, part.scratch, q)
        dq = torch.bmm(part.scratch.mT, part.k) if dq is None else dq.baddbmm_(part.scratch.mT, part.k)
    assert dq is not None
    return dq


def _product(rows: Tensor, columns: Tensor, scale: float, out: Tensor) -> Tensor:
    """scale * rows (c, W, d) @ columns (c, T, d) transposed, into out: faster than to transpose and scale the columns first."""
    return out.baddbmm_(rows, columns.mT, beta=0, alpha=scale)


def _scores(q: Tensor, parts: Sequence[Part], scale: float, safe: bool) -> None:
    """Writes all scores, times log2(e), and unless `safe` hides what is masked."""
    for part in parts:
        _product(part.k, q, scale * LOG2_E, part.weights)
        for mask in () if safe else part.masks:
            mask.exclude_(part.weights)


def _highest(parts: Sequence[Part]) -> Tensor:
    """The maxima of scores (c, 1, T), 0 where all is hidden."""
    top = functools.reduce(torch.maximum, (part.weights.amax(dim=1, keepdim=True) for part in parts))
    return top.masked_fill_(top == -torch.inf, 0)


def _weights(part: Part, top: Tensor | None) -> None:
    """Scores into weights, in place: hidden ones are -inf already where there is a maximum, and zeroed here where not."""
    if top is not None:
        part.weights.sub_(top).exp2_()
        return
    part.weights.exp2_()
    for mask in part.masks:
        mask.zero_(part.weights)
