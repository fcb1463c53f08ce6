"""Tokens mixed along the length by one or two matrices, and what a constant 1 in their place would come to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.operators import operator

__all__ = ["mix_into_slots"]


def mix_into_slots(
    x: Tensor, real: Tensor | None, first: Tensor, second: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """E x and E 1 for each matrix E, with sums over real tokens alone.

    One operator, because E 1 by itself has a gradient as large as E, and x one for each matrix: here they meet in one memory.

    Args:
        x: (batch, n, width), zero at tokens that are not real.
        real: (batch, n), bool; None: all are.
        first, second: (slots, n), in x's dtype.

    Returns:
        (matrices, batch, slots, width) and (matrices, batch or 1, slots), differentiable in x and in the matrices. Under
        autocast they are in its dtype, as products are.
    """
    device = x.device.type
    if torch.is_autocast_enabled(device) and x.dtype == torch.float32:
        x, first = (y.to(torch.get_autocast_dtype(device)) for y in (x, first))
        second = None if second is None else second.to(x.dtype)
    with torch.autocast(device, enabled=False):
        return _forward(x, None if real is None else real.to(x.dtype), first, second)


def _matrices(first: Tensor, second: Tensor | None) -> list[Tensor]:
    return [first] if second is None else [first, second]


def _empty(x: Tensor, real: Tensor | None, first: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor]:
    lead, slots = len(_matrices(first, second)), first.shape[0]
    share = x.new_empty(lead, 1 if real is None else real.shape[0], slots)
    return x.new_empty(lead, x.shape[0], slots, x.shape[2]), share


@operator("attnbench::mix_into_slots")
def _forward(x: Tensor, real: Tensor | None, first: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor]:
    mixed, share = _empty(x, real, first, second)
    for matrix, to, of_ones in zip(_matrices(first, second), mixed, share, strict=True):
        torch.bmm(matrix.expand(x.shape[0], -1, -1), x, out=to)
        if real is None:
            torch.sum(matrix, dim=1, out=of_ones[0])
        else:
            torch.mm(real, matrix.mT, out=of_ones)
    return mixed, share


@_forward.register_fake
def _(x: Tensor, real: Tensor | None, first: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor]:
    return _empty(x, real, first, second)


@operator("attnbench::mix_into_slots_backward")
def _backward(
    x: Tensor, real: Tensor | None, first: Tensor, second: Tensor | None, grad: Tensor, grad_share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dx, found = torch.empty_like(x), []
    for number, (matrix, of_mixed, of_ones) in enumerate(zip(_matrices(first, second), grad, grad_share, strict=True)):
        back = matrix.mT.expand(x.shape[0], -1, -1)
        torch.bmm(back, of_mixed, out=dx) if number == 0 else dx.baddbmm_(back, of_mixed)
        dmatrix = x.new_empty(matrix.shape)
        if real is None:
            dmatrix.copy_(of_ones.mT.expand_as(dmatrix))
        else:
            torch.mm(of_ones.mT, real, out=dmatrix)
        for sample, of_sample in zip(x, of_mixed, strict=True):
            dmatrix.addmm_(of_sample, sample.mT)
        found.append(dmatrix)
    return dx, found[0], found[1] if second is not None else x.new_empty(0)


@_backward.register_fake
def _(
    x: Tensor, real: Tensor | None, first: Tensor, second: Tensor | None, grad: Tensor, grad_share: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    dsecond = x.new_empty(0 if second is None else second.shape)
    return torch.empty_like(x), x.new_empty(first.shape), dsecond


def _setup(ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor, Tensor | None], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _gradients(ctx: Any, grad: Tensor, grad_share: Tensor) -> tuple[Tensor | None, ...]:
    x, real, first, second = ctx.saved_tensors
    with torch.autocast(grad.device.type, enabled=False):
        dx, dfirst, dsecond = _backward(x, real, first, second, grad, grad_share)
    return dx, None, dfirst, None if second is None else dsecond


_forward.register_autograd(_gradients, setup_context=_setup)


def _products(first: Any, second: Any, columns: int) -> int:
    """Twice the multiplications of the matrices with so many columns, of tokens or of which are real."""
    return 2 * first[0] * first[1] * columns * (1 if second is None else 2)


@register_flop_formula(torch.ops.attnbench.mix_into_slots)
def _flops(x: Any, real: Any, first: Any, second: Any, *args: Any, **kwargs: Any) -> int:
    return _products(first, second, x[0] * x[2] + (0 if real is None else real[0]))


@register_flop_formula(torch.ops.attnbench.mix_into_slots_backward)
def _backward_flops(x: Any, real: Any, first: Any, second: Any, *args: Any, **kwargs: Any) -> int:
    return _products(first, second, 2 * x[0] * x[2] + (0 if real is None else real[0]))
