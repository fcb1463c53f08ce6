"""The arithmetic of linear attention on one chunk of keys, of queries, or of both: what `prefix` goes through.

Tensors are (batch * heads, rows, width), in float32 or float64. Beside each sum over values stands its normaliser: what it
would come to if each value were 1. Its products are those of a row with a matrix: a product with a column takes a CPU's
library up to thirty times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.kernels.features import FeatureMap

__all__ = ["Gradient", "Keys", "Queries", "Sums", "absorb_", "absorb_backward", "read", "read_backward"]


class Sums(NamedTuple):
    """What the keys so far come to, in units of 2^top (...): total (..., features, e), and norm (..., features, 1)."""

    total: Tensor
    norm: Tensor
    top: Tensor

    @classmethod
    def empty(cls, like: Tensor, rows: int, features: int, width: int) -> Sums:
        total, norm = (like.new_zeros(rows, features, size) for size in (width, 1))
        return cls(total, norm, total.new_full((rows,), torch.finfo(total.dtype).min / 2))  # finite: differences are

    def flat(self) -> Sums:
        return Sums(*(x.flatten(0, 1) for x in self))

    def copied(self) -> Sums:
        return Sums(self.total.clone(), self.norm.clone(), self.top)

    def unflat(self, batch: int, heads: int) -> Sums:
        return Sums(*(x.unflatten(0, (batch, heads)) for x in self))


class Gradient(NamedTuple):
    """Of the sums: that of total, and that of norm."""

    total: Tensor
    norm: Tensor


@dataclass
class Queries:
    """A chunk of queries: x (batch, heads, rows, d) as given, and phi its features."""

    x: Tensor
    phi: Tensor

    @classmethod
    def load(cls, phi: FeatureMap, q: Tensor, kept: Tensor | None = None, spare: Tensor | None = None) -> Queries:
        """From q (batch, heads, rows, d); `kept` is where its features are to stay, `spare` may be written over."""
        x = q.to(torch.promote_types(q.dtype, torch.float32))
        return cls(x, phi.queries(x, kept, spare).flatten(0, 1))


@dataclass
class Keys:
    """A chunk of keys: x (batch, heads, rows, d) as given, phi its features, scale their log2 scales (None: all 0), values.

    Masked keys have features or a scale that make every product with them zero.
    """

    x: Tensor
    phi: Tensor
    scale: Tensor | None
    values: Tensor

    @classmethod
    def load(
        cls,
        phi: FeatureMap,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        kept: Tensor | None = None,
        spare: Tensor | None = None,
    ) -> Keys:
        """From k and v (batch, heads, rows, width) and a key_mask (batch, rows); `kept` and `spare` as for queries."""
        x, values = (y.to(torch.promote_types(y.dtype, torch.float32)) for y in (k, v))
        features, scale = phi.keys(x, kept, spare)
        if key_mask is not None:
            hidden = ~key_mask[:, None, :]
            if scale is None:
                features = features.masked_fill_(hidden[..., None], 0)
            else:
                scale = scale.masked_fill_(hidden, -torch.inf)
        return cls(x, features.flatten(0, 1), None if scale is None else scale.flatten(0, 1), values.flatten(0, 1))


def absorb_(sums: Sums, keys: Keys) -> Sums:
    """The sums with a chunk of keys taken in; total and norm are written over."""
    total, norm, top = sums
    if keys.scale is None:
        total.baddbmm_(keys.phi.mT, keys.values)
        norm.add_(keys.phi.sum(dim=1).unsqueeze(-1))
        return sums
    top = torch.maximum(sums.top, keys.scale.amax(dim=-1))
    fading = (sums.top - top).exp2_()[:, None, None]
    weights = (keys.scale - top[:, None]).exp2_()[..., None]
    total.mul_(fading).baddbmm_(keys.phi.mT, keys.values * weights)
    norm.mul_(fading)
    norm.mT.baddbmm_(weights.mT, keys.phi)
    return Sums(total, norm, top)


def absorb_backward(
    dsums: Gradient, keys: Keys, before: Sums, after: Sums, rooms: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor, Gradient]:
    """Gradients of the features and of the values, each in the room given for it if any, and of the sums before."""
    # A baddbmm would first spread the row.
    dphi = _product(keys.values, dsums.total.mT, rooms[0]).add_(dsums.norm.mT)
    dvalues = torch.bmm(keys.phi, dsums.total, out=rooms[1])
    if keys.scale is not None:
        weights = (keys.scale - after.top[:, None]).exp2_()[..., None]
        dphi, dvalues = dphi.mul_(weights), dvalues.mul_(weights)
        fading = (before.top - after.top).exp2_()[:, None, None]
        dsums = Gradient(dsums.total * fading, dsums.norm * fading)
    return dphi, dvalues, dsums


def read(sums: Sums, queries: Queries, keys: Keys | None, room: Tensor | None) -> tuple[Tensor, Tensor]:
    """Numerators (.., rows, e), in `room` if there is one, and normalisers (.., rows, 1) of each query.

    They are over the sums, and over the keys of the same rows up to each query.
    """
    summed, norm = torch.bmm(queries.phi, sums.total, out=room), torch.bmm(sums.norm.mT, queries.phi.mT).mT
    if keys is None:
        return summed, norm
    factors, carry = _triangle(sums.top, keys)
    if carry is not None:
        summed.mul_(carry)
        norm.mul_(carry)
    weights = (queries.phi @ keys.phi.mT).mul_(factors)
    return summed.baddbmm_(weights, keys.values), norm.add_(weights.sum(dim=-1, keepdim=True))


def read_backward(
    grad: Tensor,
    grad_norm: Tensor,
    sums: Sums,
    queries: Queries,
    keys: Keys | None,
    dphi: Tensor,
    dvalues: Tensor,
    dsums: Gradient,
    room: Tensor | None,
) -> tuple[Tensor, Gradient]:
    """Gradients of the queries' features (in `room` where there is one) and of the sums, from those of what was read.

    Those of the keys' features and values are added in place.
    """
    dqueries = None
    if keys is not None:
        factors, carry = _triangle(sums.top, keys)
        weights = (queries.phi @ keys.phi.mT).mul_(factors)
        dvalues.baddbmm_(weights.mT, grad)
        dweights = (grad @ keys.values.mT).add_(grad_norm).mul_(factors)
        dphi.baddbmm_(dweights.mT, queries.phi)
        dqueries = _product(dweights, keys.phi, room)
        if carry is not None:
            grad, grad_norm = grad * carry, grad_norm * carry
    norm = torch.baddbmm(dsums.norm.mT, grad_norm.mT, queries.phi).mT
    dsums = Gradient(torch.baddbmm(dsums.total, queries.phi.mT, grad), norm)
    if dqueries is None:
        dqueries = _product(grad, sums.total.mT, room)
    else:
        dqueries.baddbmm_(grad, sums.total.mT)
    return dqueries.addcmul_(grad_norm, sums.norm.mT), dsums


def _product(a: Tensor, b: Tensor, room: Tensor | None) -> Tensor:
    """a @ b, in `room` if there is one, which may be a transposed view."""
    if room is None or room.stride(-1) == 1 or room.stride(-2) != 1:
        return torch.bmm(a, b, out=room)
    torch.bmm(b.mT, a.mT, out=room.mT)
    return room


def _triangle(top: Tensor, keys: Keys) -> tuple[Tensor, Tensor | None]:
    """Factors (.., rows, rows) of the weights inside a chunk, and (.., rows, 1) of what the earlier sums give (None: 1).

    Each row is in units of the largest scale that it sees, so that no later key can make the earlier ones vanish.
    """
    if keys.scale is None:
        rows = keys.phi.shape[1]
        return keys.phi.new_ones(rows, rows).tril_(), None
    tops = torch.maximum(top[:, None], keys.scale.cummax(dim=-1).values)
    return (keys.scale[:, None, :] - tops[..., None]).exp2_().tril_(), (top[:, None] - tops).exp2_()[..., None]
