"""Attention inside blocks that the caller has laid out: each block of queries has its own block of keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.parts import Hidden, Own
from attnbench.kernels.pieces import (
    accumulator,
    attend,
    attend_backward,
    bounded,
    piece_bytes,
    transposed,
    unchanged_by_autocast,
)

__all__ = ["block_attention"]


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


FEW = 2**12  # scores that are always worth a piece


def _pieces(blocks: int, n_q: int, n_k: int, x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Runs of blocks, or of the rows of one block, whose scores fit in the budget and never outnumber the keys' elements."""
    room = min(piece_bytes(x.device) // accumulator(x.dtype).itemsize, max(x.numel(), FEW))
    rows = max(1, min(n_q, room // max(n_k, 1)))
    count = max(1, room // max(rows * n_k, 1)) if rows == n_q else 1
    for block in range(0, blocks, count):
        for row in range(0, n_q, rows):
            yield slice(block, min(block + count, blocks)), slice(row, min(row + rows, n_q))


def _parts(k: Tensor, v: Tensor, mask: Tensor | None, n_q: int, buffers: int) -> Iterator[tuple[slice, slice, Own]]:
    """Every piece with its keys, all in turn over the same buffers."""
    (blocks, n_k, _), acc = k.shape, accumulator(k.dtype)
    pieces = list(_pieces(blocks, n_q, n_k, k))
    largest = max(((b.stop - b.start) * (r.stop - r.start) * n_k for b, r in pieces), default=0)
    spaces = [k.new_empty(largest, dtype=acc) for _ in range(buffers)]
    for block, row in pieces:
        shape = block.stop - block.start, n_k, row.stop - row.start
        masks = []
        if mask is not None:
            seen = mask if mask.shape[0] == 1 else mask[block]
            masks.append(Hidden(seen if seen.shape[1] == 1 else seen[:, row]))
        views = [space[: math.prod(shape)].view(shape) for space in spaces]
        yield block, row, Own(k[block].to(acc), v[block].to(acc), block, masks, views[0], views[-1])


@torch.library.custom_op("attnbench::block_attention", mutates_args=())
@unchanged_by_autocast
def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    out = v.new_empty(*q.shape[:2], v.shape[-1])
    lse = q.new_empty(q.shape[:2], dtype=accumulator(q.dtype))
    safe = bounded(q, k, scale)
    for block, row, part in _parts(k, v, mask, q.shape[1], 1):
        lse[block, row] = attend(transposed(q[block, row], scale), [part], out[block, row], safe)
    return out, lse


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    shape = q.shape[:2]
    return v.new_empty(*shape, v.shape[-1]), q.new_empty(shape, dtype=accumulator(q.dtype))


@torch.library.custom_op("attnbench::block_attention_backward", mutates_args=())
@unchanged_by_autocast
def _backward(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, lse: Tensor, grad: Tensor, delta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dq, acc, safe = q.new_empty(q.shape), lse.dtype, bounded(q, k, scale)
    dk, dv = (x.new_zeros(x.shape, dtype=acc) for x in (k, v))
    for block, row, part in _parts(k, v, mask, q.shape[1], 2):
        tile, tile_grad = transposed(q[block, row], scale), grad[block, row].to(acc)
        rows = attend_backward(tile, [part], lse[block, row], tile_grad, delta[block, row], safe, dk, dv)
        torch.mul(rows, scale, out=dq[block, row])
    return dq, dk.to(k.dtype), dv.to(v.dtype)


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
