"""Attention inside ragged groups of tokens, wherever they stand: what sorting, hashing and routing come down to.

A *tile* is a run of queries and the run of keys that they see, both taken from lists of positions (the sorted order, or a
selection). Tiles are gathered into cache-sized pieces of nearly equal width; nothing is ever as large as n_q x n_k.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.pieces import LOG2_E, Part, accumulator, attend, attend_backward, bounded

__all__ = ["gathered_attention"]

PIECE_BYTES = {"cpu": 2**20}  # scores of a piece
DEVICE_BYTES = 2**27
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
        exclude_self: a query does not see the key at its own position.
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
        rows = self.flat.index_select(0, self.of_slot[slots].view(-1))
        return rows.to(accumulator(rows.dtype)).view(*slots.shape, -1)

    def put(self, slots: Tensor, values: Tensor) -> None:
        self.flat.index_copy_(0, self.of_slot[slots], values)

    def add(self, slots: Tensor, values: Tensor) -> None:
        self.flat.index_add_(0, self.of_slot[slots].view(-1), values.reshape(-1, values.shape[-1]))


def _rows(x: Tensor, positions: Tensor) -> _Rows:
    d = x.shape[-1]
    if x.stride(-1) != 1 or any(stride % d for stride in x.stride()[:-1]):
        x = x.contiguous()
    steps = [stride // d for stride in x.stride()[:-1]]
    count = 1 + sum((size - 1) * step for size, step in zip(x.shape, steps, strict=False))
    batch, head = (torch.arange(x.shape[i], device=x.device) * steps[i] for i in (0, 1))
    index = batch[:, None, None] + head[None, :, None] + positions * steps[2]
    return _Rows(x.as_strided((count, d), (d, 1), x.storage_offset()), index.view(-1))


class _Run(NamedTuple):
    """Tiles of one piece: slots of queries (c, m) and of keys (c, w), padded with repeats, and which are real (None: all)."""

    queries: Tensor
    keys: Tensor
    real_queries: Tensor | None
    real_keys: Tensor | None


def _slots(starts: list[int], stops: list[int], device: torch.device) -> tuple[Tensor, Tensor | None]:
    lengths = {stop - start for start, stop in zip(starts, stops, strict=True)}
    slots = torch.tensor(starts, device=device)[:, None] + torch.arange(max(lengths), device=device)
    if len(lengths) == 1:
        return slots, None
    last = torch.tensor(stops, device=device)[:, None] - 1
    return torch.minimum(slots, last), slots <= last


def _runs(tiles: Tensor, lists: tuple[int, int], x: Tensor) -> Iterator[_Run]:
    """The tiles (batch, heads, T, 4) of one pass, cut and batched so that the padded scores of a run fit in the budget."""
    room = PIECE_BYTES.get(x.device.type, DEVICE_BYTES) // accumulator(x.dtype).itemsize
    row = torch.arange(tiles.shape[0] * tiles.shape[1], device=tiles.device)[:, None, None]
    shifts = row * torch.tensor([lists[0], lists[0], lists[1], lists[1]], device=tiles.device)
    flat = (tiles.flatten(0, 1) + shifts).view(-1, 4).tolist()
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
        yield _Run(queries, keys, real_queries, real_keys)
        start = stop


class _Hidden:
    """A bool mask over a piece, True = visible."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask

    def zero_(self, weights: Tensor) -> None:
        weights.mul_(self.mask)

    def exclude_(self, scores: Tensor) -> None:
        scores.masked_fill_(~self.mask, -torch.inf)


class _Sight(NamedTuple):
    """Who sees whom inside a tile: positions of the listed queries (shifted so that the last ones meet) and keys."""

    queries: Tensor
    keys: Tensor
    causal: bool
    exclude_self: bool

    def mask(self, run: _Run) -> _Hidden | None:
        masks = []
        if run.real_queries is not None:
            masks.append(run.real_queries[:, :, None])
        if run.real_keys is not None:
            masks.append(run.real_keys[:, None, :])
        if self.causal or self.exclude_self:
            query, key = self.queries[run.queries][:, :, None], self.keys[run.keys][:, None, :]
            masks += [key <= query] if self.causal else []
            masks += [key != query] if self.exclude_self else []
        if not masks:
            return None
        mask = masks[0]
        for other in masks[1:]:
            mask = mask & other
        return _Hidden(mask.expand(-1, run.queries.shape[1], run.keys.shape[1]))


def _sight(q: Tensor, k: Tensor, queries: Tensor, keys: Tensor, causal: bool, exclude_self: bool) -> _Sight:
    return _Sight((queries + (k.shape[2] - q.shape[2])).view(-1), keys.reshape(-1), causal, exclude_self)


def _like_tokens(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(batch, heads, n, width), zeros, laid out token by token as projections are."""
    batch, heads, n, _ = x.shape
    return x.new_zeros(batch, n, heads, width, dtype=dtype).transpose(1, 2)


@torch.library.custom_op("attnbench::gathered_attention", mutates_args=())
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
    acc, lists = accumulator(q.dtype), (queries.shape[-1], keys.shape[-1])
    out, lse = _like_tokens(q, v.shape[-1], acc), q.new_full(q.shape[:-1], -torch.inf, dtype=acc)
    q_rows, k_rows, v_rows = _rows(q, queries), _rows(k, keys), _rows(v, keys)
    out_rows, lse_rows = _rows(out, queries), _rows(lse[..., None], queries)
    sight, safe = _sight(q, k, queries, keys, causal, exclude_self), bounded(q, k, scale)
    for number, each in enumerate(tiles):
        for run in _runs(each, lists, q):
            tile = q_rows.take(run.queries).mul_(scale * LOG2_E)
            weights = tile.new_empty(*tile.shape[:2], run.keys.shape[1])
            part = Part(k_rows.take(run.keys), v_rows.take(run.keys), sight.mask(run), weights)
            found = tile.new_empty(*tile.shape[:2], v.shape[-1])
            top = attend(tile, [part], found, safe)
            real = slice(None) if run.real_queries is None else run.real_queries
            slots, found, top = run.queries[real].view(-1), found[real].view(-1, v.shape[-1]), top[real].view(-1, 1)
            if number:
                found, top = _joined(out_rows.take(slots), lse_rows.take(slots), found, top)
            out_rows.put(slots, found)
            lse_rows.put(slots, top)
    return out.to(v.dtype), lse.div_(LOG2_E)


def _joined(out: Tensor, lse: Tensor, found: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """What earlier passes found and what this one did, under one softmax; logs are to base 2."""
    both = torch.logaddexp2(lse, top)
    finite = both.masked_fill(both == -torch.inf, 0)
    return out.mul_(torch.exp2(lse - finite)).addcmul_(found, torch.exp2(top - finite)), both


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
    return _like_tokens(q, v.shape[-1], v.dtype), q.new_empty(q.shape[:-1], dtype=accumulator(q.dtype))


@torch.library.custom_op("attnbench::gathered_attention_backward", mutates_args=())
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
    acc, lists = accumulator(q.dtype), (queries.shape[-1], keys.shape[-1])
    dq, dk, dv = (_like_tokens(x, x.shape[-1], acc) for x in (q, k, v))
    q_rows, k_rows, v_rows, grad_rows = _rows(q, queries), _rows(k, keys), _rows(v, keys), _rows(grad, queries)
    lse_rows, delta_rows = _rows((lse * LOG2_E)[..., None], queries), _rows(delta[..., None], queries)
    dq_rows, dk_rows, dv_rows = _rows(dq, queries), _rows(dk, keys), _rows(dv, keys)
    sight, safe = _sight(q, k, queries, keys, causal, exclude_self), bounded(q, k, scale)
    for each in tiles:
        for run in _runs(each, lists, q):
            tile = q_rows.take(run.queries).mul_(scale * LOG2_E)
            weights, scratch = (tile.new_empty(*tile.shape[:2], run.keys.shape[1]) for _ in range(2))
            part = Part(k_rows.take(run.keys), v_rows.take(run.keys), sight.mask(run), weights)
            log_sum, row_delta = lse_rows.take(run.queries), delta_rows.take(run.queries)
            tile_dq, [(tile_dk, tile_dv)] = attend_backward(
                tile, [part], log_sum, grad_rows.take(run.queries), row_delta, safe, [scratch]
            )
            dq_rows.add(run.queries, tile_dq)
            dk_rows.add(run.keys, tile_dk)
            dv_rows.add(run.keys, tile_dv)
    return dq.mul_(scale).to(q.dtype), dk.div_(LOG2_E).to(k.dtype), dv.to(v.dtype)


@_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (_like_tokens(x, x.shape[-1], x.dtype) for x in (q, k, v))
    return dq, dk, dv


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.causal, ctx.exclude_self, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, out, lse = ctx.saved_tensors
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
