"""Blocks of tokens, each beside a mixture of all blocks, written once into the memory that attention reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.operators import operator
from attnbench.kernels.pieces import accumulator, piece_scores
from attnbench.kernels.rooms import Rooms
from attnbench.kernels.tokens import empty_tokens

__all__ = ["beside_mixtures"]

SHARE = 0.25  # of the budget for scores: what backward takes at a time


def beside_mixtures(x: Tensor, mixture: Tensor, gain: Tensor | None = None) -> Tensor:
    """Each block of tokens, and behind it, place by place, a mixture of all blocks.

    out_i = [x_i; gain_i sum_j mixture_ij x_j]

    Args:
        x: (batch, heads, blocks, size, width).
        mixture: (batch, heads, blocks, blocks), in float32, or float64 for double inputs.
        gain: (batch, heads, blocks, size), factors for the places of a mixture, in the mixture's dtype; None means 1. A
            place of factor 0 gets no gradient through it.

    Returns:
        (batch, heads, blocks, 2 size, width) in x's dtype, differentiable in all three. It lies in memory as
        (batch, blocks, heads, 2 size, width), so that batch and blocks are one axis to whoever attends within blocks.
    """
    with torch.autocast(x.device.type, enabled=False):  # sums over blocks are long
        return _forward(x, mixture, gain)


def _empty(x: Tensor) -> Tensor:
    batch, heads, blocks, size, width = x.shape
    return x.new_empty(batch, blocks, heads, 2 * size, width).transpose(1, 2)


@operator("attnbench::beside_mixtures")
def _forward(x: Tensor, mixture: Tensor, gain: Tensor | None) -> Tensor:
    out = _empty(x)
    own, mixed = out.chunk(2, dim=3)
    own.copy_(x)
    for sample, shares in enumerate(mixture):
        if x.dtype == mixture.dtype:
            torch.bmm(shares, own[sample].flatten(2), out=mixed[sample].flatten(2))
        else:
            mixed[sample] = torch.bmm(shares, x[sample].to(shares.dtype).flatten(2)).view_as(mixed[sample])
    if gain is not None:
        mixed.mul_(gain[..., None])
    return out


@_forward.register_fake
def _(x: Tensor, mixture: Tensor, gain: Tensor | None) -> Tensor:
    return _empty(x)


@operator("attnbench::beside_mixtures_backward")
def _backward(out: Tensor, mixture: Tensor, gain: Tensor | None, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    acc, (x, mixed), (own, dmixed) = accumulator(out.dtype), out.chunk(2, dim=3), grad.chunk(2, dim=3)
    dx, dmixture, rooms = empty_tokens(x, tuple(x.shape[2:4]), x.shape[4]), torch.empty_like(mixture), Rooms(out)
    dgain = mixture.new_empty(0 if gain is None else gain.shape)
    for at in _groups(x):
        shares = mixture[at].flatten(0, 1)
        weighted, back = (rooms.empty(name, acc, *x[at].shape) for name in ("weighted", "back"))
        weighted.copy_(dmixed[at])
        if gain is not None:
            factor = gain[at]
            dgain[at] = torch.where(factor == 0, 0, (weighted * mixed[at]).sum(dim=-1) / factor)
            weighted.mul_(factor[..., None])
        flat = weighted.flatten(0, 1).flatten(2)
        dmixture[at] = torch.bmm(flat, x[at].to(acc).flatten(3).flatten(0, 1).mT).view_as(dmixture[at])
        torch.bmm(shares.mT, flat, out=back.flatten(0, 1).flatten(2))
        if dx.dtype == acc:
            torch.add(own[at], back, out=dx[at])
        else:
            dx[at] = own[at] + back
    return dx, dmixture, dgain


def _groups(x: Tensor) -> Iterator[tuple[slice, slice]]:
    """Samples, or heads of one sample, that fit in the budget."""
    batch, heads, *inner = x.shape
    some = max(1, piece_scores(x, SHARE) // max(1, inner[0] * inner[1] * inner[2]))
    samples, some = max(1, some // heads), min(some, heads)
    for sample in range(0, batch, samples):
        for head in range(0, heads, some):
            yield slice(sample, sample + samples), slice(head, head + some)


@_backward.register_fake
def _(out: Tensor, mixture: Tensor, gain: Tensor | None, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    blocks, twice, width = out.shape[2:]
    dgain = mixture.new_empty(0 if gain is None else gain.shape)
    return empty_tokens(out, (blocks, twice // 2), width), torch.empty_like(mixture), dgain


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    _, mixture, gain = inputs
    ctx.save_for_backward(output, mixture, gain)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    out, mixture, gain = ctx.saved_tensors
    with torch.autocast(grad.device.type, enabled=False):
        dx, dmixture, dgain = _backward(out, mixture, gain, grad)
    return dx, dmixture, None if gain is None else dgain


_forward.register_autograd(_gradients, setup_context=_setup)


def _products(x: Any) -> int:
    batch, heads, blocks, size, width = x
    return 2 * batch * heads * blocks * blocks * size * width


@register_flop_formula(torch.ops.attnbench.beside_mixtures)
def _flops(x: Any, *args: Any, **kwargs: Any) -> int:
    return _products(x)


@register_flop_formula(torch.ops.attnbench.beside_mixtures_backward)
def _backward_flops(out: Any, *args: Any, **kwargs: Any) -> int:
    batch, heads, blocks, twice, width = out
    return 2 * _products((batch, heads, blocks, twice // 2, width))
