"""The arithmetic of linear attention on one chunk of keys, of queries, or of both: what `prefix` goes through.

Tensors are (batch * heads, rows, width), in float32 or float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.kernels.features import FeatureMap

__all__ = ["Keys", "Queries", "Sums", "absorb", "read", "read_backward", "sums_backward"]


class Sums(NamedTuple):
    """What the keys so far come to: total (..., features, e + 1) in units of 2^top, and top (...)."""

    total: Tensor
    top: Tensor

    @classmethod
    def empty(cls, like: Tensor, rows: int, features: int, width: int) -> Sums:
        total = like.new_zeros(rows, features, width)
        return cls(total, total.new_full((rows,), torch.finfo(total.dtype).min / 2))  # finite, so that differences are

    def flat(self) -> Sums:
        return Sums(self.total.flatten(0, 1), self.top.flatten())

    def unflat(self, batch: int, heads: int) -> Sums:
        return Sums(self.total.unflatten(0, (batch, heads)), self.top.unflatten(0, (batch, heads)))


@dataclass
class Keys:
    """A chunk of keys: x as given, phi its features, scale their log2 scales (None: all 0), values [v, 1]."""

    x: Tensor
    phi: Tensor
    scale: Tensor | None
    values: Tensor

    @classmethod
    def load(cls, phi: FeatureMap, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Keys:
        """From k and v (batch, heads, rows, width); masked keys have no weight, not even in the normaliser."""
        acc = torch.promote_types(k.dtype, torch.float32)
        values = v.new_ones(*v.shape[:3], v.shape[3] + 1, dtype=acc)
        values[..., :-1] = v
        x = k.flatten(0, 1).to(acc)
        features, scale = phi.keys(x)
        if key_mask is not None:
            values *= key_mask[:, None, :, None]
            if scale is not None:
                scale = scale.masked_fill(~key_mask.repeat_interleave(k.shape[1], dim=0), -torch.inf)
        return cls(x, features, scale, values.flatten(0, 1))

    def relative(self, top: Tensor) -> Tensor | None:
        """(.., rows, 1): each key's scale in units of 2^top; None where all are 1."""
        return None if self.scale is None else (self.scale - top[:, None]).exp2_()[..., None]


@dataclass
class Queries:
    """A chunk of queries: x as given, and phi its features."""

    x: Tensor
    phi: Tensor

    @classmethod
    def load(cls, phi: FeatureMap, q: Tensor) -> Queries:
        x = q.flatten(0, 1).to(torch.promote_types(q.dtype, torch.float32))
        return cls(x, phi.queries(x))


def absorb(sums: Sums, keys: Keys) -> Sums:
    """The sums with a chunk of keys taken in."""
    if keys.scale is None:
        return Sums(torch.baddbmm(sums.total, keys.phi.mT, keys.values), sums.top)
    top = torch.maximum(sums.top, keys.scale.amax(dim=-1))
    kept = sums.total * (sums.top - top).exp2_()[:, None, None]
    return Sums(kept.baddbmm_(keys.phi.mT, keys.values * keys.relative(top)), top)


def read(sums: Sums, queries: Queries, keys: Keys | None) -> Tensor:
    """[numerator, divisor] (.., rows, e + 1) over the sums, and over the keys of the queries' own chunk up to each query."""
    summed = queries.phi @ sums.total
    if keys is None:
        return summed
    factors, carry = _triangle(sums.top, keys)
    if carry is not None:
        summed.mul_(carry)
    weights = (queries.phi @ keys.phi.mT).mul_(factors)
    return summed.baddbmm_(weights, keys.values)


def _triangle(top: Tensor, keys: Keys) -> tuple[Tensor, Tensor | None]:
    """Factors (.., rows, rows) of the weights inside a chunk, and (.., rows, 1) of what the earlier sums give (None: 1).

    Each row is in units of the largest scale that it sees, so that no later key can make the earlier ones vanish.
    """
    if keys.scale is None:
        rows = keys.phi.shape[1]
        return keys.phi.new_ones(rows, rows).tril_(), None
    tops = torch.maximum(top[:, None], keys.scale.cummax(dim=-1).values)
    return (keys.scale[:, None, :] - tops[..., None]).exp2_().tril_(), (top[:, None] - tops).exp2_()[..., None]


def sums_backward(dsums: Tensor, keys: Keys, before: Sums, after: Sums) -> tuple[Tensor, Tensor, Tensor]:
    """Backward of `absorb`: gradients of the features, of the values, and of the sums before."""
    dphi, dvalues = keys.values @ dsums.mT, keys.phi @ dsums
    if keys.scale is not None:
        relative = keys.relative(after.top)
        dphi.mul_(relative)
        dvalues.mul_(relative)
        dsums = dsums * (before.top - after.top).exp2_()[:, None, None]
    return dphi, dvalues, dsums


def read_backward(
    grad: Tensor,
    sums: Sums,
    queries: Queries,
    keys: Keys | None,
    dphi: Tensor | None,
    dvalues: Tensor | None,
    dsums: Tensor,
) -> tuple[Tensor, Tensor]:
    """Backward of `read`: gradients of the queries' features and of the sums; those of the keys are added in place."""
    if keys is None or dphi is None or dvalues is None:
        return grad @ sums.total.mT, torch.baddbmm(dsums, queries.phi.mT, grad)
    factors, carry = _triangle(sums.top, keys)
    weights = (queries.phi @ keys.phi.mT).mul_(factors)
    dvalues.baddbmm_(weights.mT, grad)
    dweights = torch.bmm(grad, keys.values.mT, out=weights).mul_(factors)
    dphi.baddbmm_(dweights.mT, queries.phi)
    dqueries = dweights @ keys.phi
    if carry is not None:
        grad = grad * carry
    return dqueries.baddbmm_(grad, sums.total.mT), torch.baddbmm(dsums, queries.phi.mT, grad)
