"""An iterated pseudo-inverse times a matrix: a chain of products in memory that they share, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnbench.kernels.operators import operator

__all__ = ["inverse_times"]

FACTORS = (7, 15, 13)  # of the identity, from the innermost bracket outwards
PER_STEP = 4  # matrices that backward needs of each step: its z and the three products on the way to the next


def inverse_times(a: Tensor, norms: Tensor, right: Tensor, iterations: int) -> Tensor:
    """Z right, where Z is the pseudo-inverse of a after so many iterations, each of third order:

    Z_0 = a^T / norms,  Z_(i+1) = Z_i (13 I - X (15 I - X (7 I - X))) / 4  with  X = a Z_i

    The last iterate is not written out: its factors meet `right` one by one, which is narrower.

    Args:
        a: (batch, m, m), in float32 or float64.
        norms: (batch,), at least the square of a's largest singular value.
        right: (batch, m, e).
        iterations: at least 1.

    Returns:
        (batch, m, e), differentiable in a, norms and right.

    Source: Razavi et al. 2014, "A new iterative method for finding approximate inverses of complex matrices", as equation 14
    of Xiong et al. 2021, "Nystromformer".
    """
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (a, norms, right))
    return _forward(a, norms, right, iterations, keep)[0]


def _iterate(a: Tensor, z: Tensor, s: Tensor, inner: Tensor, outer: Tensor, out: Tensor) -> None:
    """The next z, into out, which may be `inner`: with s = -X, inner = s (7 I + s), outer = s (15 I + inner)."""
    s.baddbmm_(a, z, beta=0, alpha=-1)
    torch.mul(s, FACTORS[0], out=inner).baddbmm_(s, s)
    torch.mul(s, FACTORS[1], out=outer).baddbmm_(s, inner)
    torch.mul(z, FACTORS[2] / 4, out=out).baddbmm_(z, outer, alpha=1 / 4)


@operator("attnbench::inverse_times")
def _forward(a: Tensor, norms: Tensor, right: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Also all z and the products between them, and what meets the last z, where these are to be kept."""
    steps = iterations - 1
    spaces = a.new_empty(steps * PER_STEP + 1 if keep else 1 + (PER_STEP - 1) * (steps > 0), *a.shape)
    z, *free = spaces
    torch.div(a.mT, norms[:, None, None], out=z)
    for _ in range(steps):
        s, inner, outer, *others = free
        following, free = (others[0], others[1:]) if keep else (inner, [z, s, outer])
        _iterate(a, z, s, inner, outer, following)
        z = following
    narrow = right.new_empty(2 * len(FACTORS), *right.shape)
    inner = right
    for factor, product, bracket in zip(FACTORS, narrow[::2], narrow[1::2], strict=True):
        torch.bmm(z, inner, out=product)
        inner = torch.mul(right, factor, out=bracket).baddbmm_(a, product, alpha=-1)
    out = torch.empty_like(right).baddbmm_(z, inner, beta=0, alpha=1 / 4)
    return (out, spaces, narrow) if keep else (out, a.new_empty(0), a.new_empty(0))


@_forward.register_fake
def _(a: Tensor, norms: Tensor, right: Tensor, iterations: int, keep: bool) -> tuple[Tensor, Tensor, Tensor]:
    if not keep:
        return torch.empty_like(right), a.new_empty(0), a.new_empty(0)
    spaces = a.new_empty((iterations - 1) * PER_STEP + 1, *a.shape)
    return torch.empty_like(right), spaces, right.new_empty(2 * len(FACTORS), *right.shape)


@operator("attnbench::inverse_times_backward")
def _backward(
    a: Tensor, norms: Tensor, right: Tensor, spaces: Tensor, narrow: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    da, dz, dright = torch.zeros_like(a), torch.empty_like(a), torch.zeros_like(right)
    z = spaces[-1]
    dz.baddbmm_(grad, narrow[-1].mT, beta=0, alpha=1 / 4)
    dinner = torch.empty_like(right).baddbmm_(z.mT, grad, beta=0, alpha=1 / 4)
    before = [right, *narrow[1::2]]
    for factor, product, inner in reversed(list(zip(FACTORS, narrow[::2], before, strict=False))):
        dright.add_(dinner, alpha=factor)
        da.baddbmm_(dinner, product.mT, alpha=-1)
        dproduct = torch.bmm(a.mT, dinner).neg_()
        dz.baddbmm_(dproduct, inner.mT)
        dinner = torch.bmm(z.mT, dproduct)
    dright.add_(dinner)
    rooms: Sequence[Tensor] = a.new_empty(4 if len(spaces) > 1 else 0, *a.shape).unbind()
    for step in reversed(range(len(spaces) // PER_STEP)):
        dz, rooms = _iterate_backward(a, spaces[step * PER_STEP :][:PER_STEP], dz, da, rooms)
    z = spaces[0]
    dnorms = -torch.linalg.vecdot(dz.flatten(1), z.flatten(1)) / norms
    return da.add_(dz.div_(norms[:, None, None]).mT), dnorms, dright


def _iterate_backward(
    a: Tensor, kept: Tensor, grad: Tensor, da: Tensor, rooms: Sequence[Tensor]
) -> tuple[Tensor, Sequence[Tensor]]:
    """The gradient of a step's z, from that of the next, whose memory is among the rooms of the step before; adds to da."""
    z, s, inner, outer = kept
    dz, ds, dinner, douter = rooms
    douter.baddbmm_(z.mT, grad, beta=0, alpha=1 / 4)
    torch.mul(grad, FACTORS[2] / 4, out=dz).baddbmm_(grad, outer.mT, alpha=1 / 4)
    torch.mul(douter, FACTORS[1], out=ds).baddbmm_(douter, inner.mT)
    dinner.baddbmm_(s.mT, douter, beta=0)
    ds.add_(dinner, alpha=FACTORS[0]).baddbmm_(dinner, s.mT).baddbmm_(s.mT, dinner)
    da.baddbmm_(ds, z.mT, alpha=-1)
    return dz.baddbmm_(a.mT, ds, alpha=-1), (grad, ds, dinner, douter)


@_backward.register_fake
def _(a: Tensor, norms: Tensor, right: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(a), torch.empty_like(norms), torch.empty_like(right)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    a, norms, right, _, _ = inputs
    _, spaces, narrow = output
    ctx.mark_non_differentiable(spaces, narrow)
    ctx.set_materialize_grads(False)  # zeros for what is kept would be as large as that
    ctx.save_for_backward(a, norms, right, spaces, narrow)


def _gradients(ctx: Any, grad: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 5
    with torch.autocast(grad.device.type, enabled=False):
        return *_backward(*ctx.saved_tensors, grad), None, None


_forward.register_autograd(_gradients, setup_context=_setup)


def _products(right: Any, wide: int, narrow: int, iterations: int) -> int:
    """Twice the multiplications of so many products of m x m matrices a step, and of so many that are as narrow as `right`."""
    batch, m, e = right
    return 2 * batch * m * m * (wide * (iterations - 1) * m + narrow * e)


@register_flop_formula(torch.ops.attnbench.inverse_times)
def _flops(a: Any, norms: Any, right: Any, iterations: int, *args: Any, **kwargs: Any) -> int:
    return _products(right, 4, 7, iterations)


@register_flop_formula(torch.ops.attnbench.inverse_times_backward)
def _backward_flops(a: Any, norms: Any, right: Any, spaces: Any, *args: Any, **kwargs: Any) -> int:
    return _products(right, 8, 14, spaces[0] // PER_STEP + 1)
