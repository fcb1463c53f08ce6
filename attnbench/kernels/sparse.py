"""Attention over a band of keys, and over listed keys beside it, under one softmax."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels import flex
from attnbench.kernels.layout import Band, Piece, cut
from attnbench.kernels.operators import operator
from attnbench.kernels.parts import Keys, Listed, Triangles, Window
from attnbench.kernels.pieces import (
    Mask,
    Part,
    accumulator,
    attend,
    attend_backward,
    bounded,
    dots,
    piece_bytes,
    unchanged_by_autocast,
)
from attnbench.kernels.tokens import empty_tokens

__all__ = ["backend", "sparse_attention"]


def backend(
    device: torch.device, dtype: torch.dtype, head_dim: int, *, listed: bool = False
) -> Literal["flex", "pieces"]:
    """What `sparse_attention` runs on for such inputs: "flex" (FlexAttention, CUDA alone) or "pieces" (everything else)."""
    return "pieces" if flex.applies(device, dtype, head_dim, listed=listed) else "flex"


def sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    before: int,
    after: int,
    shift: int = 0,
    band_mask: Tensor | None = None,
    extra: Tensor | None = None,
    extra_mask: Tensor | None = None,
    rows: int | None = None,
    scale: float | None = None,
    on: Literal["flex", "pieces"] | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention of query i over keys i + shift - before ... i + shift + after, and over the extra keys of its tile.

    Args:
        q: (batch, heads, n_q, d).
        k: (batch, heads, n_k, d).
        v: (batch, heads, n_k, e).
        before, after: how far the band reaches, inclusive and both at least 0; clipped to the keys that exist.
        shift: the key on the diagonal of query 0; n_k - n_q aligns the last query with the last key.
        band_mask: (batch, n_k) bool, True = visible through the band.
        extra: (batch or 1, heads or 1, tiles or 1, E) positions of further keys, -1 for none. Query i reads tile i // rows,
            or the only one. They must not be visible through the band too: a key counts once for each way it is seen.
        extra_mask: (batch, n_k) bool, True = visible as an extra key.
        rows: queries of a tile; needed where extra has more than one tile.
        scale: of the scores; None means 1 / sqrt(d).
        on: the backend; None means what `backend` says.

    Returns:
        out (batch, heads, n_q, e) in v's dtype, and lse (batch, heads, n_q) in float32 or float64.

    Raises:
        ValueError: on="flex" where FlexAttention does not apply, with the reason.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    device = q.device.type
    if torch.is_autocast_enabled(device):
        q, k, v = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    before, after = (min(reach, q.shape[2] + k.shape[2] + abs(shift)) for reach in (before, after))
    on = backend(q.device, q.dtype, q.shape[3], listed=extra is not None) if on is None else on
    if on == "flex":
        reason = flex.applies(q.device, q.dtype, q.shape[3], listed=extra is not None)
        if reason:
            raise ValueError(f"sparse_attention: on='flex' is not possible here: {reason}")
        return flex.band_attention(q, k, v, Band(q.shape[2], k.shape[2], before, after, shift), band_mask, scale)
    return _forward(q, k, v, [before, after, shift], band_mask, extra, extra_mask, rows, scale)[:2]


@dataclass
class _Call:
    """One call's inputs with batch and heads flattened, and what all its pieces share."""

    k: Tensor
    v: Tensor
    band: Band
    rows: int | None
    batch: int
    band_mask: Tensor | None
    extra: Tensor | None
    extra_mask: Tensor | None

    def pieces(self, buffers: int) -> Iterator[tuple[Piece, list[Part]]]:
        """Every piece with its parts, all in turn over the same buffers."""
        acc = accumulator(self.k.dtype)
        room = piece_bytes(self.k.device) // acc.itemsize
        pieces = cut(self.band, self.k.shape[0], room, self.rows)
        listed = 0 if self.extra is None else self.extra.shape[-1]
        spaces = [
            [self.k.new_empty(max(p.count * p.rows * width(p) for p in pieces), dtype=acc) for _ in range(buffers)]
            for width in (lambda p: p.width, lambda p: listed)
        ]

        @functools.cache  # most pieces are alike
        def views(part: int, *shape: int) -> list[Tensor]:
            return [space[: math.prod(shape)].view(shape) for space in spaces[part]]

        for piece in pieces:
            parts: list[Part] = [self._window(piece, views(0, piece.count, piece.width, piece.rows))]
            if listed:
                parts.append(self._listed(piece, views(1, piece.count, listed, piece.rows)))
            yield piece, parts

    def _window(self, piece: Piece, buffers: list[Tensor]) -> Window:
        low = piece.first + self.band.shift - self.band.before - piece.start
        high = piece.first + self.band.shift + self.band.after - piece.start
        masks: list[Mask] = []
        if low > 1 - piece.rows or high < piece.width - 1:
            masks.append(Triangles(low, high))
        if self.band_mask is not None:
            seen = piece.keys(self.band_mask)
            if not seen.all():
                masks.append(Keys(seen))
        k, v = (piece.keys(x).to(accumulator(x.dtype)) for x in (self.k, self.v))
        return Window(k, v, masks, buffers[0], buffers[-1], piece)

    def _listed(self, piece: Piece, buffers: list[Tensor]) -> Listed:
        assert self.extra is not None
        heads, tiles = self.k.shape[0] // self.batch, self.extra.shape[2]
        own = torch.arange(piece.heads.start, piece.heads.stop, device=self.k.device)
        b, h = (own // heads) % self.extra.shape[0], (own % heads) % self.extra.shape[1]
        first = (
            piece.first // self.rows % tiles if self.rows else 0
        )  # without a height of tiles there is one list for all
        span = min(piece.count, tiles) if piece.step else 1
        positions = self.extra[b, h, first : first + span].flatten(0, 1)
        masks: list[Mask] = []
        present = positions >= 0
        positions = positions.clamp_min(0)
        if self.extra_mask is not None:
            present = present & self.extra_mask[own[:, None], positions]
        if not present.all():
            masks.append(Keys(present))
        at = own[:, None]
        k, v = (x[at, positions].to(accumulator(x.dtype)).expand(piece.count, -1, -1) for x in (self.k, self.v))
        return Listed(k, v, masks, buffers[0], buffers[-1], at.expand(piece.count, 1), positions)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: list[int],
    band_mask: Tensor | None,
    extra: Tensor | None,
    extra_mask: Tensor | None,
    rows: int | None,
) -> _Call:
    layout = Band(q.shape[2], k.shape[2], *band)
    heads = q.shape[1]
    masks = [None if mask is None else mask.repeat_interleave(heads, dim=0) for mask in (band_mask, extra_mask)]
    return _Call(k.flatten(0, 1), v.flatten(0, 1), layout, rows, q.shape[0], masks[0], extra, masks[1])


def _room(x: Tensor, n: int) -> Tensor:
    """An empty (batch, heads, n, width of x) whose batch and heads are one axis in memory.

    One sample's may lie token by token, which saves a copy where heads are joined.
    """
    if x.shape[0] == 1:
        return empty_tokens(x, n, x.shape[3])
    return x.new_empty(*x.shape[:2], n, x.shape[3])


@operator("attnbench::sparse_attention")
@unchanged_by_autocast
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: list[int],
    band_mask: Tensor | None,
    extra: Tensor | None,
    extra_mask: Tensor | None,
    rows: int | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Also whether no score is beyond the range in which the maxima may stay, which backward need not look up again."""
    out, lse = _room(v, q.shape[2]), q.new_empty(q.shape[:3], dtype=accumulator(q.dtype))
    safe, flat = bounded(q, k, scale), [x.flatten(0, 1) for x in (q, out, lse)]
    for piece, parts in _call(q, k, v, band, band_mask, extra, extra_mask, rows).pieces(1):
        tile, target, sums = (piece.queries(x) for x in flat)
        attend(tile.to(lse.dtype), parts, target, sums, scale, safe)
    return out, lse, torch.tensor(safe)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    lse = q.new_empty(q.shape[:3], dtype=accumulator(q.dtype))
    return _room(v, q.shape[2]), lse, torch.empty((), dtype=torch.bool)


@operator("attnbench::sparse_attention_backward")
@unchanged_by_autocast
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: list[int],
    band_mask: Tensor | None,
    extra: Tensor | None,
    extra_mask: Tensor | None,
    rows: int | None,
    scale: float,
    lse: Tensor,
    safe: Tensor,
    grad: Tensor,
    delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, acc, in_range = _room(q, q.shape[2]), lse.dtype, bool(safe)
    # Products add to these, which is faster where the rows of a head are neighbours.
    dk, dv = (x.new_zeros(x.shape, dtype=acc) for x in (k, v))
    flat = [x.flatten(0, 1) for x in (q, dq, lse, grad, delta)]
    totals = dk.flatten(0, 1), dv.flatten(0, 1)
    for piece, parts in _call(q, k, v, band, band_mask, extra, extra_mask, rows).pieces(2):
        tile, target, sums, tile_grad, tile_delta = (piece.queries(x) for x in flat)
        tile, tile_grad = tile.to(acc), tile_grad.to(acc)
        target.copy_(attend_backward(tile, parts, sums, tile_grad, tile_delta, scale, in_range, *totals))
    return dq, dk.to(k.dtype), dv.to(v.dtype)


@_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _room(q, q.shape[2]), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, ctx.band, band_mask, extra, extra_mask, ctx.rows, ctx.scale = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.save_for_backward(q, k, v, band_mask, extra, extra_mask, *output)


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor, *unused: Any) -> tuple[Tensor | None, ...]:
    q, k, v, band_mask, extra, extra_mask, out, lse, safe = ctx.saved_tensors
    delta = dots(grad, out, lse.dtype).sub_(grad_lse)
    gradients = _backward(q, k, v, ctx.band, band_mask, extra, extra_mask, ctx.rows, ctx.scale, lse, safe, grad, delta)
    return *gradients, None, None, None, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def _scores(q: torch.Size, k: torch.Size, band: list[int], extra: torch.Size | None, rows: int | None) -> int:
    """How many scores are computed, over batch and heads."""
    layout = Band(q[2], k[2], *band)
    listed = 0 if extra is None else extra[3]
    return q[0] * q[1] * sum(p.count * p.rows * (p.width + listed) for p in cut(layout, 1, 1, rows))


@register_flop_formula(torch.ops.attnbench.sparse_attention)
def _flops(
    q: Any, k: Any, v: Any, band: Any, band_mask: Any, extra: Any, extra_mask: Any, rows: Any, *_: Any, **__: Any
) -> int:
    return 2 * _scores(q, k, band, extra, rows) * (q[3] + v[3])


@register_flop_formula(torch.ops.attnbench.sparse_attention_backward)
def _backward_flops(
    q: Any, k: Any, v: Any, band: Any, band_mask: Any, extra: Any, extra_mask: Any, rows: Any, *_: Any, **__: Any
) -> int:
    return 2 * _scores(q, k, band, extra, rows) * (3 * q[3] + 2 * v[3])
