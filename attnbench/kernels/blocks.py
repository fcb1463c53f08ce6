"""Attention inside blocks that the caller has laid out: each block of queries has its own block of keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.pieces import LOG2_E, Part, accumulator, attend, attend_backward, bounded

__all__ = ["block_attention"]

PIECE_BYTES = {"cpu": 2**21}  # scores of a piece: about what the cores' own caches hold
DEVICE_BYTES = 2**27


def block_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax attention inside each block.

    out = softmax(scale q k^T, over visible keys) v

    Args:
        q: (..., n_q, d), with any leading dimensions (batch, heads, blocks).
        k: (..., n_k, d), the keys of each block of queries.
        v: (..., n_k, e).
        mask: bool, broadcastable to (..., n_q, n_k), True = visible. What it hides must still be finite.
        scale: of the scores; None means 1 / sqrt(d).

    Returns:
        out (..., n_q, e) in v's dtype, and lse (..., n_q), the log of the sum of exponentials, in float32 or float64.

    Raises:
        ValueError: shapes or the type of the mask do not fit.
    """
    lead, (n_q, d), (n_k, e) = q.shape[:-2], q.shape[-2:], v.shape[-2:]
    if k.shape != (*lead, n_k, d) or v.shape[:-2] != lead:
        raise ValueError(
            "block_attention: needs q (..., n_q, d), k (..., n_k, d), v (..., n_k, e) with equal leading dimensions, "
            f"received {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        )
    if mask is not None:
        mask = _flat_mask(mask, lead, n_q, n_k)
    scale = d**-0.5 if scale is None else scale
    device = q.device.type
    if torch.is_autocast_enabled(device):
        q, k, v = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    with torch.autocast(device, enabled=False):
        out, lse = _forward(q.reshape(-1, n_q, d), k.reshape(-1, n_k, d), v.reshape(-1, n_k, e), mask, scale)
    return out.view(*lead, n_q, e), lse.view(*lead, n_q)


def _flat_mask(mask: Tensor, lead: torch.Size, n_q: int, n_k: int) -> Tensor:
    """(1 or blocks, 1 or n_q, n_k), without blowing up what is broadcast over all blocks or all queries."""
    if mask.dtype != torch.bool:
        raise ValueError(f"block_attention: mask must be bool with True at what is visible, received {mask.dtype}")
    if mask.ndim < 2 or mask.ndim > len(lead) + 2:
        raise ValueError(f"block_attention: mask must broadcast to {(*lead, n_q, n_k)}, received {tuple(mask.shape)}")
    rows = mask.shape[-2]
    if all(size == 1 for size in mask.shape[:-2]):
        return mask.expand(*mask.shape[:-2], rows, n_k).reshape(1, rows, n_k)
    return mask.expand(*lead, rows, n_k).reshape(-1, rows, n_k)


class _Hidden:
    """A bool mask over a piece, held as factors for weights."""

    def __init__(self, mask: Tensor, dtype: torch.dtype) -> None:
        self.mask, self.dtype = mask, dtype

    def zero_(self, weights: Tensor) -> None:
        weights.mul_(self.mask.to(self.dtype))

    def exclude_(self, scores: Tensor) -> None:
        scores.masked_fill_(~self.mask, -torch.inf)


def _pieces(blocks: int, n_q: int, n_k: int, x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Runs of blocks, or of the rows of one block, whose scores fit in the budget."""
    room = PIECE_BYTES.get(x.device.type, DEVICE_BYTES) // accumulator(x.dtype).itemsize
    rows = max(1, min(n_q, room // n_k))
    count = max(1, room // (rows * n_k)) if rows == n_q else 1
    for block in range(0, blocks, count):
        for row in range(0, n_q, rows):
            yield slice(block, min(block + count, blocks)), slice(row, min(row + rows, n_q))


def _mask_of(mask: Tensor | None, blocks: slice, rows: slice, dtype: torch.dtype) -> _Hidden | None:
    if mask is None:
        return None
    mask = mask if mask.shape[0] == 1 else mask[blocks]
    return _Hidden(mask if mask.shape[1] == 1 else mask[:, rows], dtype)


def _buffer(x: Tensor, n_k: int, pieces: list[tuple[slice, slice]]) -> Tensor:
    largest = max(((b.stop - b.start) * (r.stop - r.start) for b, r in pieces), default=0)
    return torch.empty(largest * n_k, dtype=accumulator(x.dtype), device=x.device)


@torch.library.custom_op("attnbench::block_attention", mutates_args=())
def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    (blocks, n_q, _), (n_k, e), acc = q.shape, v.shape[1:], accumulator(q.dtype)
    out, lse = v.new_empty(blocks, n_q, e), q.new_empty(blocks, n_q, 1, dtype=acc)
    pieces = list(_pieces(blocks, n_q, n_k, q))
    buffer, safe = _buffer(q, n_k, pieces), bounded(q, k, scale)
    for block, row in pieces:
        tile = q[block, row].to(acc) * (scale * LOG2_E)
        count, rows, _ = tile.shape
        weights = buffer[: count * rows * n_k].view(count, rows, n_k)
        part = Part(k[block].to(acc), v[block].to(acc), _mask_of(mask, block, row, acc), weights)
        target = out[block, row]
        direct = target if target.dtype == acc and target.is_contiguous() else torch.empty_like(target, dtype=acc)
        lse[block, row] = attend(tile, [part], direct, safe)
        if direct is not target:
            target.copy_(direct)
    return out, lse.squeeze(-1).div_(LOG2_E)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    shape = q.shape[:2]
    return v.new_empty(*shape, v.shape[-1]), q.new_empty(shape, dtype=accumulator(q.dtype))


@torch.library.custom_op("attnbench::block_attention_backward", mutates_args=())
def _backward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, lse: Tensor, grad: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    (blocks, n_q, _), n_k, acc = q.shape, k.shape[1], accumulator(q.dtype)
    dq = torch.empty_like(q, memory_format=torch.contiguous_format)
    dk, dv = (torch.zeros_like(x, dtype=acc, memory_format=torch.contiguous_format) for x in (k, v))
    pieces = list(_pieces(blocks, n_q, n_k, q))
    buffers, safe = [_buffer(q, n_k, pieces) for _ in range(2)], bounded(q, k, scale)
    for block, row in pieces:
        tile = q[block, row].to(acc) * (scale * LOG2_E)
        count, rows, _ = tile.shape
        weights, scratch = (x[: count * rows * n_k].view(count, rows, n_k) for x in buffers)
        part = Part(k[block].to(acc), v[block].to(acc), _mask_of(mask, block, row, acc), weights)
        statistics = (x[block, row, None] for x in (lse * LOG2_E, delta))
        log_sum, row_delta = statistics
        tile_dq, [(tile_dk, tile_dv)] = attend_backward(
            tile, [part], log_sum, grad[block, row].to(acc), row_delta, safe, [scratch]
        )
        dq[block, row] = tile_dq.mul_(scale)
        dk[block] += tile_dk
        dv[block] += tile_dv
    return dq, dk.div_(LOG2_E).to(k.dtype), dv.to(v.dtype)


@_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, lse: Tensor, grad: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, mask, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, mask, *output)


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, mask, out, lse = ctx.saved_tensors
    delta = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(dim=-1) - grad_lse
    return *_backward(q, k, v, mask, ctx.scale, lse, grad, delta), None, None


_forward.register_autograd(_gradients, setup_context=_setup)


@register_flop_formula(torch.ops.attnbench.block_attention)
def _flops(q: torch.Size, k: torch.Size, v: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(q[:2]) * k[1] * (q[2] + v[2])


@register_flop_formula(torch.ops.attnbench.block_attention_backward)
def _backward_flops(q: torch.Size, k: torch.Size, v: torch.Size, *args: Any, **kwargs: Any) -> int:
    return 2 * math.prod(q[:2]) * k[1] * (3 * q[2] + 2 * v[2])
