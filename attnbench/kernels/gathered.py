"""Attention inside ragged groups of tokens, wherever they stand: what sorting, hashing and routing come down to.

A *tile* is a run of queries and the run of keys that they see, both taken from lists of positions (the sorted order, or a
selection). Tiles are gathered into cache-sized pieces (`tiles.py` says which); nothing is ever as large as n_q x n_k.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.operators import operator
from attnbench.kernels.parts import Hidden
from attnbench.kernels.pieces import Mask, accumulator, attend, attend_backward, bounded, dots, piece_scores
from attnbench.kernels.rooms import Rooms
from attnbench.kernels.tiles import Run, runs
from attnbench.kernels.tokens import empty_tokens

__all__ = ["gathered_attention"]

SHARE = 0.5  # of the budget for scores: what is gathered needs room in the caches too


def gathered_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor,
    keys: Tensor,
    tiles: Tensor,
    *,
    causal: bool = False,
    exclude_self: bool = False,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention inside tiles of gathered tokens.

    out_i = softmax over all keys of all tiles that hold query i (a key met in several tiles counts as often)

    Args:
        q, k, v: (batch, heads, n_q, d), (batch, heads, n_k, d), (batch, heads, n_k, e).
        queries, keys: (batch, heads, S), positions of tokens: the lists that tiles cut runs out of.
        tiles: (passes, batch, heads, T, 4), the bounds (query start, query stop, key start, key stop) of runs; empty runs are
            welcome. Within one pass a query stands in one tile at most.
        causal: a query sees keys up to its own position; with n_q != n_k the last query sees every key.
        exclude_self: a query does not see its own key; `queries` and `keys` are then one list, and tiles of one pass see its
            runs as they stand in it.
        scale: of the scores; None means 1 / sqrt(d).

    Returns:
        out (batch, heads, n_q, e) in v's dtype, and lse (batch, heads, n_q), the log of the sum of exponentials: zeros and -inf
        for a query that sees nothing. Both are differentiable in q, k and v.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    device = q.device.type
    if torch.is_autocast_enabled(device):
        q, k, v = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    with torch.autocast(device, enabled=False):
        return _forward(q, k, v, queries, keys, tiles, causal, exclude_self, scale)[:2]


class _Rows(NamedTuple):
    """A tensor (batch, heads, n, d) as rows of its own memory, and the row of each listed position (batch * heads * S)."""

    flat: Tensor
    of_slot: Tensor

    def take(self, slots: Tensor, room: Rooms, name: str) -> Tensor:
        """The rows of slots (m,), in the accumulating dtype, in a room of that name."""
        found = room.empty(name, self.flat.dtype, slots.shape[0], self.flat.shape[1])
        return torch.index_select(self.flat, 0, self.at(slots), out=found).to(accumulator(found.dtype))

    def at(self, slots: Tensor) -> Tensor:
        return self.of_slot.index_select(0, slots)


class _Listed:
    """Listed positions (batch, heads, S) of tokens, and where they lie in tensors (batch, heads, n, d) of any layout."""

    def __init__(self, positions: Tensor) -> None:
        self.positions = positions
        self._of_slot: dict[tuple[int, ...], Tensor] = {}

    def rows(self, x: Tensor) -> _Rows:
        d = x.shape[-1]
        if x.stride(-1) != 1 or any(stride % d for stride in x.stride()[:-1]):
            x = x.contiguous()
        steps = tuple(stride // d for stride in x.stride()[:-1])
        if steps not in self._of_slot:  # most tensors of a call lie alike
            batch, head = (torch.arange(x.shape[i], device=x.device) * steps[i] for i in (0, 1))
            rows = batch[:, None, None] + head[None, :, None] + self.positions * steps[2]
            self._of_slot[steps] = rows.reshape(-1)
        count = 1 + sum((size - 1) * step for size, step in zip(x.shape, steps, strict=False))
        return _Rows(x.as_strided((count, d), (d, 1), x.storage_offset()), self._of_slot[steps])


@dataclass(frozen=True)
class _Self:
    """Hides from each query of a piece its own key, `lead` rows down from the diagonal."""

    lead: int

    def zero_(self, weights: Tensor) -> None:
        weights.diagonal(-self.lead, 1, 2).zero_()

    def exclude_(self, scores: Tensor) -> None:
        scores.diagonal(-self.lead, 1, 2).fill_(-torch.inf)


@dataclass(frozen=True)
class _Leading:
    """Hides the first keys of some tiles."""

    tiles: Tensor
    keys: int

    def zero_(self, weights: Tensor) -> None:
        weights[:, : self.keys].index_fill_(0, self.tiles, 0)

    def exclude_(self, scores: Tensor) -> None:
        scores[:, : self.keys].index_fill_(0, self.tiles, -torch.inf)


@dataclass
class _Gathered:
    """The keys of a run of tiles; `rows` are those of its key slots in a gradient laid out token by token."""

    k: Tensor
    v: Tensor
    masks: Sequence[Mask]
    weights: Tensor
    scratch: Tensor
    run: Run
    rows: Tensor
    rooms: Rooms

    def accumulate(self, total: Tensor, weights: Tensor, rows: Tensor) -> None:
        room = self.rooms.empty("gradients of keys", rows.dtype, len(self.rows), rows.shape[-1])
        total.index_add_(0, self.rows, self.run.gathered(weights, rows, room))


class _Lists(NamedTuple):
    """q, k, v and the listed positions of queries (shifted so that the last query meets the last key) and keys."""

    q: _Rows
    k: _Rows
    v: _Rows
    queries: Tensor
    keys: Tensor
    like: _Rows  # rows of the keys' gradients
    rooms: Rooms

    def tile(self, run: Run, rows: _Rows, name: str) -> Tensor:
        """The rows of a run's queries (c, T, width)."""
        return rows.take(run.queries.view(-1), self.rooms, name).view(*run.queries.shape, -1)

    def part(self, run: Run, causal: bool, exclude_self: bool, buffers: int) -> _Gathered:
        masks: list[Mask] = [_Leading(*short) for short in run.short]
        if run.real_queries is not None:
            masks.append(Hidden(run.real_queries[:, :, None]))
        if run.real_keys is not None:
            masks.append(Hidden(run.real_keys[:, None, :]))
        if causal:
            query = self.queries.index_select(0, run.queries.view(-1)).view(*run.queries.shape, 1)
            masks.append(Hidden(run.by_tile(self.keys.index_select(0, run.keys))[:, None, :] <= query))
        if exclude_self:
            if run.lead is None:
                masks.append(Hidden(run.by_tile(run.keys)[:, None, :] != run.queries[:, :, None]))
            else:
                masks.append(_Self(run.lead))
        k, v = (run.by_tile(x.take(run.keys, self.rooms, name)) for x, name in ((self.k, "keys"), (self.v, "values")))
        (count, rows), names = run.queries.shape, ("weights", "scratch")[:buffers]
        spaces = [self.rooms.empty(name, k.dtype, count, run.width, rows) for name in names]
        return _Gathered(k, v, masks, spaces[0], spaces[-1], run, self.like.at(run.keys), self.rooms)


def _lists(q: Tensor, k: Tensor, v: Tensor, queries: _Listed, keys: _Listed, like: Tensor) -> _Lists:
    shifted = (queries.positions + (k.shape[2] - q.shape[2])).reshape(-1)
    flat = queries.rows(q), keys.rows(k), keys.rows(v)
    return _Lists(*flat, shifted, keys.positions.reshape(-1), keys.rows(like), Rooms(q))


def _runs(tiles: Tensor, queries: Tensor, keys: Tensor, x: Tensor) -> Iterator[Run]:
    return runs(tiles, (queries.shape[-1], keys.shape[-1]), piece_scores(x, SHARE))


@operator("attnbench::gathered_attention")
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor,
    keys: Tensor,
    tiles: Tensor,
    causal: bool,
    exclude_self: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Also whether no score is beyond the range in which the maxima may stay, which backward need not look up again."""
    acc = accumulator(q.dtype)
    n, width = q.shape[2], v.shape[-1]
    out, lse = empty_tokens(q, n, width, acc).zero_(), empty_tokens(q, n, 1, acc).fill_(-torch.inf)
    asking = _Listed(queries)
    lists, safe = _lists(q, k, v, asking, _Listed(keys), k), bounded(q, k, scale)
    (out_flat, rows), lse_flat = asking.rows(out), asking.rows(lse).flat.view(-1)
    # Sums of exponentials add up without looking at what is there, so that all passes can go through together; where they
    # may leave the range of the floats, each pass is joined to the earlier ones by its log-sum-exp.
    summed = safe and len(tiles) > 1
    if summed:
        lse.zero_()
    for number, each in enumerate([tiles] if safe else tiles):
        for run in _runs(each, queries, keys, q):
            tile, shape = lists.tile(run, lists.q, "queries"), run.queries.shape
            found, log_sum = (
                lists.rooms.empty(name, acc, *shape, *more) for name, more in (("out", (width,)), ("lse", ()))
            )
            attend(tile, [lists.part(run, causal, exclude_self, 1)], found, log_sum, scale, safe)
            real = slice(None) if run.real_queries is None else run.real_queries
            here = rows.index_select(0, run.queries[real].view(-1))
            found, log_sum = found[real].view(-1, width), log_sum[real].view(-1)
            if summed:
                total = log_sum.exp_()
                out_flat.index_add_(0, here, found.mul_(total[:, None]))
                lse_flat.index_add_(0, here, total)
                continue
            if number:
                found, log_sum = _joined(out_flat[here], lse_flat[here], found, log_sum)
            out_flat.index_copy_(0, here, found)
            lse_flat.index_copy_(0, here, log_sum)
    if summed:
        out.div_(lse.masked_fill(lse == 0, 1))
        lse.log_()
    return out.to(v.dtype), lse.squeeze(-1), torch.tensor(safe)


def _joined(out: Tensor, lse: Tensor, found: Tensor, log_sum: Tensor) -> tuple[Tensor, Tensor]:
    """What earlier passes found and what this one did, under one softmax."""
    both = torch.logaddexp(lse, log_sum)
    finite = both.masked_fill(both == -torch.inf, 0)
    return out.mul_((lse - finite).exp_()[:, None]).addcmul_(found, (log_sum - finite).exp_()[:, None]), both


@_forward.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor,
    keys: Tensor,
    tiles: Tensor,
    causal: bool,
    exclude_self: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    lse = empty_tokens(q, q.shape[2], 1, accumulator(q.dtype))
    return empty_tokens(q, q.shape[2], v.shape[-1], v.dtype), lse.squeeze(-1), torch.empty((), dtype=torch.bool)


@operator("attnbench::gathered_attention_backward")
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    queries: Tensor,
    keys: Tensor,
    tiles: Tensor,
    causal: bool,
    exclude_self: bool,
    scale: float,
    lse: Tensor,
    safe: Tensor,
    grad: Tensor,
    delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    acc, in_range = accumulator(q.dtype), bool(safe)
    dq, dk, dv = (empty_tokens(x, x.shape[2], x.shape[3], acc).zero_() for x in (q, k, v))
    asking, seen = _Listed(queries), _Listed(keys)
    lists = _lists(q, k, v, asking, seen, dk)
    totals, (dq_flat, dq_rows) = (lists.like.flat, seen.rows(dv).flat), asking.rows(dq)
    rows = [
        (asking.rows(x), name) for x, name in ((grad, "grad"), (lse[..., None], "lse"), (delta[..., None], "delta"))
    ]
    for run in _runs(tiles, queries, keys, q):
        tile, part = lists.tile(run, lists.q, "queries"), lists.part(run, causal, exclude_self, 2)
        own, log_sum, row_delta = (lists.tile(run, *each) for each in rows)
        found = attend_backward(tile, [part], log_sum.squeeze(-1), own, row_delta.squeeze(-1), scale, in_range, *totals)
        dq_flat.index_add_(0, dq_rows.index_select(0, run.queries.view(-1)), found.flatten(0, 1))
        del found  # before the next run takes its place
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


@_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (empty_tokens(x, *x.shape[2:]) for x in (q, k, v))
    return dq, dk, dv


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.exclude_self, ctx.scale = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
    *tensors, out, lse, safe = ctx.saved_tensors
    with torch.autocast(grad.device.type, enabled=False):
        delta = dots(grad, out, lse.dtype).sub_(grad_lse)
        dq, dk, dv = _backward(*tensors, ctx.causal, ctx.exclude_self, ctx.scale, lse, safe, grad, delta)
    return dq, dk, dv, *[None] * 6


_forward.register_autograd(_gradients, setup_context=_setup)


def _pairs(tiles: Tensor) -> int:
    """Query-key pairs that the tiles hold."""
    lengths = (tiles[..., 1::2] - tiles[..., ::2]).clamp_min(0)
    return int(lengths.prod(dim=-1).sum())


@register_flop_formula(torch.ops.attnbench.gathered_attention, get_raw=True)
def _flops(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, tiles: Tensor, *args: Any, **kwargs: Any
) -> int:
    return 2 * _pairs(tiles) * (q.shape[-1] + v.shape[-1])


@register_flop_formula(torch.ops.attnbench.gathered_attention_backward, get_raw=True)
def _backward_flops(
    q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, tiles: Tensor, *args: Any, **kwargs: Any
) -> int:
    return 2 * _pairs(tiles) * (3 * q.shape[-1] + 2 * v.shape[-1])
