"""Attention inside ragged groups of tokens, wherever they stand: what sorting, hashing and routing come down to.

A *tile* is a run of queries and the run of keys that they see, both taken from lists of positions (the sorted order, or a
selection). Tiles are gathered into cache-sized pieces of nearly equal width; nothing is ever as large as n_q x n_k.
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
from attnbench.kernels.pieces import Mask, accumulator, attend, attend_backward, bounded, piece_scores, transposed
from attnbench.kernels.tokens import empty_tokens

__all__ = ["gathered_attention"]

SHARE = 0.5  # of the budget for scores: what is gathered needs room in the caches too
FILL = 0.75  # a piece takes in tiles down to this share of its width; the rest of the width is wasted work


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
        return _forward(q, k, v, queries, keys, tiles, causal, exclude_self, scale)


class _Rows(NamedTuple):
    """A tensor (batch, heads, n, d) as rows of its own memory, and the row of each listed position (batch * heads * S)."""

    flat: Tensor
    of_slot: Tensor

    def take(self, slots: Tensor) -> Tensor:
        rows = self.flat.index_select(0, self.at(slots))
        return rows.to(accumulator(rows.dtype)).view(*slots.shape, -1)

    def at(self, slots: Tensor) -> Tensor:
        return self.of_slot.index_select(0, slots.view(-1))


def _rows(x: Tensor, positions: Tensor) -> _Rows:
    d = x.shape[-1]
    if x.stride(-1) != 1 or any(stride % d for stride in x.stride()[:-1]):
        x = x.contiguous()
    steps = [stride // d for stride in x.stride()[:-1]]
    count = 1 + sum((size - 1) * step for size, step in zip(x.shape, steps, strict=False))
    batch, head = (torch.arange(x.shape[i], device=x.device) * steps[i] for i in (0, 1))
    index = batch[:, None, None] + head[None, :, None] + positions * steps[2]
    return _Rows(x.as_strided((count, d), (d, 1), x.storage_offset()), index.reshape(-1))


class _Run(NamedTuple):
    """Tiles of one piece: slots of queries (c, m) and of keys (c, w), padded with repeats; which are real (None: all); and by
    how many slots the keys start before the queries, where that is the same in all tiles."""

    queries: Tensor
    keys: Tensor
    real_queries: Tensor | None
    real_keys: Tensor | None
    lead: int | None


def _slots(starts: list[int], stops: list[int], device: torch.device) -> tuple[Tensor, Tensor | None]:
    lengths = {stop - start for start, stop in zip(starts, stops, strict=True)}
    slots = torch.tensor(starts, device=device)[:, None] + torch.arange(max(lengths), device=device)
    if len(lengths) == 1:
        return slots, None
    last = torch.tensor(stops, device=device)[:, None] - 1
    return torch.minimum(slots, last), slots <= last


def _runs(tiles: Tensor, lists: tuple[int, int], x: Tensor) -> Iterator[_Run]:
    """Tiles (..., batch, heads, T, 4), cut and batched so that the padded scores of a run fit in the budget."""
    room = piece_scores(x, SHARE)
    batch, heads = tiles.shape[-4:-2]
    row = torch.arange(batch * heads, device=tiles.device).view(batch, heads, 1, 1)
    shifts = row * torch.tensor([lists[0], lists[0], lists[1], lists[1]], device=tiles.device)
    flat = (tiles + shifts).reshape(-1, 4).tolist()
    parts = []
    for q0, q1, k0, k1 in flat:
        if k1 > k0:
            rows = max(1, room // (k1 - k0))
            parts += [(start, min(start + rows, q1), k0, k1) for start in range(q0, q1, rows)]
    parts.sort(key=lambda part: (part[2] - part[3], part[0] - part[1]))
    start = 0
    while start < len(parts):
        width, height, stop = parts[start][3] - parts[start][2], 0, start
        while stop < len(parts) and parts[stop][3] - parts[stop][2] >= FILL * width:
            height = max(height, parts[stop][1] - parts[stop][0])
            if stop > start and (stop + 1 - start) * height * width > room:
                break
            stop += 1
        q0s, q1s, k0s, k1s = (list(column) for column in zip(*parts[start:stop], strict=True))
        (queries, real_queries), (keys, real_keys) = _slots(q0s, q1s, x.device), _slots(k0s, k1s, x.device)
        leads = {q0 - k0 for q0, k0 in zip(q0s, k0s, strict=True)}
        yield _Run(queries, keys, real_queries, real_keys, leads.pop() if len(leads) == 1 else None)
        start = stop


@dataclass(frozen=True)
class _Self:
    """Hides from each query of a piece its own key, `lead` rows down from the diagonal."""

    lead: int

    def zero_(self, weights: Tensor) -> None:
        weights.diagonal(-self.lead, 1, 2).zero_()

    def exclude_(self, scores: Tensor) -> None:
        scores.diagonal(-self.lead, 1, 2).fill_(-torch.inf)


@dataclass
class _Gathered:
    """The keys of a run of tiles; `rows` are those of its key slots in a gradient laid out token by token."""

    k: Tensor
    v: Tensor
    rows: Tensor
    masks: Sequence[Mask]
    weights: Tensor
    scratch: Tensor

    def accumulate(self, total: Tensor, weights: Tensor, rows: Tensor) -> None:
        total.index_add_(0, self.rows, torch.bmm(weights, rows).flatten(0, 1))


class _Lists(NamedTuple):
    """q, k, v and the listed positions of queries (shifted so that the last query meets the last key) and keys."""

    q: _Rows
    k: _Rows
    v: _Rows
    queries: Tensor
    keys: Tensor
    like: _Rows  # rows of the keys' gradients

    def part(self, run: _Run, causal: bool, exclude_self: bool, buffers: int) -> _Gathered:
        masks: list[Mask] = []
        if run.real_queries is not None:
            masks.append(Hidden(run.real_queries[:, :, None]))
        if run.real_keys is not None:
            masks.append(Hidden(run.real_keys[:, None, :]))
        if causal:
            query = self.queries.index_select(0, run.queries.view(-1)).view(*run.queries.shape, 1)
            key = self.keys.index_select(0, run.keys.view(-1)).view(run.keys.shape[0], 1, -1)
            masks.append(Hidden(key <= query))
        if exclude_self:
            if run.lead is None:
                masks.append(Hidden(run.keys[:, None, :] != run.queries[:, :, None]))
            else:
                masks.append(_Self(run.lead))
        k, v, (c, m) = self.k.take(run.keys), self.v.take(run.keys), run.queries.shape
        spaces = [k.new_empty(c, k.shape[1], m) for _ in range(buffers)]
        return _Gathered(k, v, self.like.at(run.keys), masks, spaces[0], spaces[-1])


def _lists(q: Tensor, k: Tensor, v: Tensor, queries: Tensor, keys: Tensor, like: Tensor) -> _Lists:
    shifted = (queries + (k.shape[2] - q.shape[2])).reshape(-1)
    return _Lists(_rows(q, queries), _rows(k, keys), _rows(v, keys), shifted, keys.reshape(-1), _rows(like, keys))


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
) -> tuple[Tensor, Tensor]:
    acc = accumulator(q.dtype)
    n = q.shape[2]
    out, lse = empty_tokens(q, n, v.shape[-1], acc).zero_(), empty_tokens(q, n, 1, acc).fill_(-torch.inf)
    lists, safe = _lists(q, k, v, queries, keys, k), bounded(q, k, scale)
    (out_flat, rows), lse_flat = _rows(out, queries), _rows(lse, queries).flat
    # Sums of exponentials add up without looking at what is there, so that all passes can go through together; where they
    # may leave the range of the floats, each pass is joined to the earlier ones by its log-sum-exp.
    summed = safe and len(tiles) > 1
    if summed:
        lse.zero_()
    for number, each in enumerate([tiles] if safe else tiles):
        for run in _runs(each, (queries.shape[-1], keys.shape[-1]), q):
            found, log_sum = _attended(run, lists, v.shape[-1], causal, exclude_self, scale, safe)
            real = slice(None) if run.real_queries is None else run.real_queries
            here = rows.index_select(0, run.queries[real].view(-1))
            found, log_sum = found[real].view(-1, v.shape[-1]), log_sum[real].view(-1, 1)
            if summed:
                total = log_sum.exp_()
                out_flat.index_add_(0, here, found.mul_(total))
                lse_flat.index_add_(0, here, total)
                continue
            if number:
                found, log_sum = _joined(out_flat[here], lse_flat[here], found, log_sum)
            out_flat.index_copy_(0, here, found)
            lse_flat.index_copy_(0, here, log_sum)
    if summed:
        out.div_(lse.masked_fill(lse == 0, 1))
        lse.log_()
    return out.to(v.dtype), lse.squeeze(-1)


def _attended(
    run: _Run, lists: _Lists, width: int, causal: bool, exclude_self: bool, scale: float, safe: bool
) -> tuple[Tensor, Tensor]:
    """What the queries of a run find in it (c, m, width), and the log of its sum (c, m, 1)."""
    tile = transposed(lists.q.take(run.queries), scale)
    found, log_sum = tile.new_empty(*run.queries.shape, width), tile.new_empty(run.queries.shape)
    attend(tile, [lists.part(run, causal, exclude_self, 1)], found, log_sum, safe)
    return found, log_sum[..., None]


def _joined(out: Tensor, lse: Tensor, found: Tensor, log_sum: Tensor) -> tuple[Tensor, Tensor]:
    """What earlier passes found and what this one did, under one softmax."""
    both = torch.logaddexp(lse, log_sum)
    finite = both.masked_fill(both == -torch.inf, 0)
    return out.mul_((lse - finite).exp_()).addcmul_(found, (log_sum - finite).exp_()), both


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
) -> tuple[Tensor, Tensor]:
    lse = empty_tokens(q, q.shape[2], 1, accumulator(q.dtype))
    return empty_tokens(q, q.shape[2], v.shape[-1], v.dtype), lse.squeeze(-1)


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
    grad: Tensor,
    delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    acc = accumulator(q.dtype)
    dq, dk, dv = (empty_tokens(x, x.shape[2], x.shape[3], acc).zero_() for x in (q, k, v))
    lists, safe = _lists(q, k, v, queries, keys, dk), bounded(q, k, scale)
    dk_flat, dv_flat, (dq_flat, dq_rows) = _rows(dk, keys).flat, _rows(dv, keys).flat, _rows(dq, queries)
    grad_rows, lse_rows, delta_rows = (_rows(x, queries) for x in (grad, lse[..., None], delta[..., None]))
    for run in _runs(tiles, (queries.shape[-1], keys.shape[-1]), q):
        tile, part = transposed(lists.q.take(run.queries), scale), lists.part(run, causal, exclude_self, 2)
        log_sum, row_delta = (x.take(run.queries).squeeze(-1) for x in (lse_rows, delta_rows))
        found = attend_backward(tile, [part], log_sum, grad_rows.take(run.queries), row_delta, safe, dk_flat, dv_flat)
        dq_flat.index_add_(0, dq_rows.index_select(0, run.queries.view(-1)), found.flatten(0, 1))
        del tile, part, found  # before the next run takes their place
    return dq.mul_(scale).to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


@_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (empty_tokens(x, *x.shape[2:]) for x in (q, k, v))
    return dq, dk, dv


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.exclude_self, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, out, lse = ctx.saved_tensors
    with torch.autocast(grad.device.type, enabled=False):
        delta = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(dim=-1) - grad_lse
        dq, dk, dv = _backward(*tensors, ctx.causal, ctx.exclude_self, ctx.scale, lse, grad, delta)
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
