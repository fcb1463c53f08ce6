"""Attention of each block to itself and to one mixture of all blocks, which is made piece by piece and never kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.parts import Hidden, Own
from attnbench.kernels.pieces import Mask, Part, accumulator, attend, attend_backward, bounded, transposed

__all__ = ["resorted_attention"]

PIECE_BYTES = {"cpu": 2**21}  # scores of a piece, which are never more than q has elements
DEVICE_BYTES = 2**27


def resorted_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mixture: Tensor,
    gain: Tensor | None = None,
    own_mask: Tensor | None = None,
    mixed_mask: Tensor | None = None,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention over the own block and a mixture of blocks.

    out_i = softmax(scale q_i [k_i; k'_i]^T) [v_i; v'_i],  k'_i = gain_i sum_j mixture_ij k_j (place by place), v' likewise

    Args:
        q, k, v: (batch, heads, blocks, size, width).
        mixture: (batch, heads, blocks, blocks), in float32, or float64 for double inputs. No row, times its gain, sums to more
            than 1: a mixed key is never longer than the longest key.
        gain: (batch, heads, blocks, size), factors for the places of a mixture; None means 1.
        own_mask: bool, broadcastable to (batch, heads, blocks, size, size), True = visible; by queries and own places.
        mixed_mask: bool, broadcastable to (batch, heads, blocks, 1, size), which places of a mixture are visible.
        scale: of the scores; None means 1 / sqrt(width).

    Returns:
        out (batch, heads, blocks, size, width of v) in v's dtype, and lse (batch, heads, blocks, size). A query that sees
        nothing gets zeros and -inf. Both are differentiable in q, k, v, mixture and gain.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    device = q.device.type
    if torch.is_autocast_enabled(device):
        q, k, v = (x.to(torch.get_autocast_dtype(device)) for x in (q, k, v))
    with torch.autocast(device, enabled=False):
        return _forward(q, k, v, mixture, gain, own_mask, mixed_mask, scale)


class _Group:
    """Some heads of one sample: their blocks (g * blocks, size, width) of keys and values, and the mixtures of these."""

    def __init__(self, k: Tensor, v: Tensor, mixture: Tensor, gain: Tensor | None) -> None:
        acc, self.size, self.mixture = accumulator(k.dtype), k.shape[2], mixture
        self.gain = None if gain is None else gain.reshape(-1, self.size, 1)
        self.own = [x.to(acc).reshape(-1, self.size, x.shape[-1]).contiguous() for x in (k, v)]
        self.plain = [(mixture @ self.flat(x)).view_as(x) for x in self.own]
        self.mixed = self.plain if self.gain is None else [x * self.gain for x in self.plain]

    def flat(self, x: Tensor) -> Tensor:
        """(g, blocks, size * width), as mixing sees it."""
        return x.view(*self.mixture.shape[:2], -1)

    def parts(self, run: slice, masks: list[list[Mask]], buffers: int) -> list[Part]:
        """What a run's queries see. Gradients of all blocks lie first in their totals, those of all mixtures after them."""
        heads, blocks = self.mixture.shape[:2]
        count = heads * (run.stop - run.start)  # several heads come in one run
        places = [slice(start, start + count) for start in (run.start, run.start + heads * blocks)]
        spaces = self.mixture.new_empty(2, buffers, count, self.size, self.size)
        return [
            Own(k[places[0]], v[places[0]], place, mask, space[0], space[-1])
            for (k, v), place, mask, space in zip((self.own, self.mixed), places, masks, spaces, strict=True)
        ]

    def unmix(self, totals: list[Tensor]) -> tuple[list[Tensor], Tensor, Tensor | None]:
        """From the gradients of blocks and mixtures, for keys and for values: those of k and v, the mixture and the gain."""
        shares, gains = torch.zeros_like(self.mixture), None if self.gain is None else torch.zeros_like(self.gain)
        found = []
        for x, plain, total in zip(self.own, self.plain, totals, strict=True):
            own, mixed = total.chunk(2)
            if self.gain is not None and gains is not None:
                gains += (mixed * plain).sum(dim=-1, keepdim=True)
                mixed = mixed * self.gain
            found.append(self.flat(own).baddbmm_(self.mixture.mT, self.flat(mixed)))
            shares.baddbmm_(self.flat(mixed), self.flat(x).mT)
        return found, shares, gains


def _groups(q: Tensor) -> Iterator[tuple[tuple[int, slice], list[slice]]]:
    """A sample and some of its heads, and the runs of blocks in them (one, or there is one head) that fit in the budget."""
    batch, heads, blocks, size, _ = q.shape
    scores = min(PIECE_BYTES.get(q.device.type, DEVICE_BYTES) // accumulator(q.dtype).itemsize, q.numel())
    room = max(1, scores // (2 * size * size))
    some, run = max(1, room // blocks), min(room, blocks)
    runs = [slice(block, min(block + run, blocks)) for block in range(0, blocks, run)]
    for sample in range(batch):
        for head in range(0, heads, some):
            yield (sample, slice(head, head + some)), runs


def _hidden(mask: Tensor | None, q: Tensor, at: tuple[int, slice, slice]) -> list[Mask]:
    return [] if mask is None else [Hidden(mask.expand(*q.shape[:3], *mask.shape[3:])[at].flatten(0, 1))]


def _by_token(x: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(batch, heads, blocks, size, width), laid out token by token as projections are."""
    batch, heads, blocks, size, _ = x.shape
    step = heads * width
    # Not a permuted view: autograd adds other gradients in place to what is nobody's view.
    strides = (blocks * size * step, width, size * step, step, 1)
    return x.new_empty_strided((batch, heads, blocks, size, width), strides, dtype=dtype)


def _in_memory_order(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1, 4)


@torch.library.custom_op("attnbench::resorted_attention", mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mixture: Tensor,
    gain: Tensor | None,
    own_mask: Tensor | None,
    mixed_mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    out, lse = _by_token(q, v.shape[-1], v.dtype), q.new_empty(q.shape[:4], dtype=mixture.dtype)
    safe = bounded(_in_memory_order(q), _in_memory_order(k), scale)
    for some, runs in _groups(q):
        group = _Group(k[some], v[some], mixture[some], None if gain is None else gain[some])
        for run in runs:
            at = (*some, run)
            tile = transposed(q[at].flatten(0, 1), scale)
            parts = group.parts(run, [_hidden(own_mask, q, at), _hidden(mixed_mask, q, at)], 1)
            found = tile.new_empty(tile.shape[0], group.size, v.shape[-1])
            lse[at] = attend(tile, parts, found, safe).view(lse[at].shape)
            out[at] = found.view(out[at].shape)
            del tile, parts, found  # before the next piece takes their place
    return out, lse


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mixture: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    return _by_token(q, v.shape[-1], v.dtype), q.new_empty(q.shape[:4], dtype=mixture.dtype)


@torch.library.custom_op("attnbench::resorted_attention_backward", mutates_args=())
def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mixture: Tensor,
    gain: Tensor | None,
    own_mask: Tensor | None,
    mixed_mask: Tensor | None,
    scale: float,
    lse: Tensor,
    grad: Tensor,
    delta: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (_by_token(x, x.shape[-1], x.dtype) for x in (q, k, v))
    d_mixture, d_gain = mixture.new_empty(mixture.shape), mixture.new_empty(0 if gain is None else gain.shape)
    safe = bounded(_in_memory_order(q), _in_memory_order(k), scale)
    for some, runs in _groups(q):
        group = _Group(k[some], v[some], mixture[some], None if gain is None else gain[some])
        totals = [x.new_zeros(2 * len(x), *x.shape[1:]) for x in group.own]
        for run in runs:
            at = (*some, run)
            tile, tile_grad = transposed(q[at].flatten(0, 1), scale), grad[at].to(lse.dtype).flatten(0, 1)
            parts = group.parts(run, [_hidden(own_mask, q, at), _hidden(mixed_mask, q, at)], 2)
            rows = attend_backward(
                tile, parts, lse[at].flatten(0, 1), tile_grad, delta[at].flatten(0, 1), safe, *totals
            )
            dq[at] = rows.mul_(scale).view(dq[at].shape)
            del tile, tile_grad, parts, rows  # before the next piece takes their place
        (found_k, found_v), d_mixture[some], gains = group.unmix(totals)
        dk[some], dv[some] = found_k.view(dk[some].shape), found_v.view(dv[some].shape)
        if gains is not None:
            d_gain[some] = gains.view(d_gain[some].shape)
    return dq, dk, dv, d_mixture, d_gain


@_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, mixture: Tensor, gain: Tensor | None, *args: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (_by_token(x, x.shape[-1], x.dtype) for x in (q, k, v))
    return dq, dk, dv, mixture.new_empty(mixture.shape), mixture.new_empty(0 if gain is None else gain.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)


def _gradients(ctx: Any, grad: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, out, lse = ctx.saved_tensors
    with torch.autocast(grad.device.type, enabled=False):
        delta = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(dim=-1) - grad_lse
        *most, d_gain = _backward(*tensors, ctx.scale, lse, grad, delta)
    return *most, None if tensors[4] is None else d_gain, None, None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def _products(q: torch.Size, width: int, gradients: int) -> int:
    """Twice the multiplications of scores and outputs over two blocks of keys, and of the mixing, each `gradients` times."""
    batch, heads, blocks, size, _ = q
    return 2 * batch * heads * blocks * (2 * size * size + blocks * size) * width * gradients


@register_flop_formula(torch.ops.attnbench.resorted_attention)
def _flops(q: torch.Size, k: torch.Size, v: torch.Size, *args: Any, **kwargs: Any) -> int:
    return _products(q, q[-1] + v[-1], 1)


@register_flop_formula(torch.ops.attnbench.resorted_attention_backward)
def _backward_flops(q: torch.Size, k: torch.Size, v: torch.Size, *args: Any, **kwargs: Any) -> int:
    return _products(q, q[-1], 3) + _products(q, v[-1], 2)
