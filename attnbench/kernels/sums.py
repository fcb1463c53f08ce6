"""The arithmetic of linear attention on one chunk of keys, of queries, or of both: what `prefix` goes through.

Tensors are (batch * heads, rows, width), in float32 or float64. The last column of sums, and of what is read from them, is
the normaliser: what the values would come to if each were 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.kernels.features import FeatureMap

__all__ = ["Keys", "Queries", "Sums", "absorb_", "absorb_backward", "read", "read_backward"]


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

    def copied(self) -> Sums:
        return Sums(self.total.clone(), self.top)

    def unflat(self, batch: int, heads: int) -> Sums:
        return Sums(self.total.unflatten(0, (batch, heads)), self.top.unflatten(0, (batch, heads)))


@dataclass
class Queries:
    """A chunk of queries: x (batch, heads, rows, d) as given, and phi its features."""

    x: Tensor
    phi: Tensor

    @classmethod
    def load(cls, phi: FeatureMap, q: Tensor, kept: Tensor | None = None) -> Queries:
        """From q (batch, heads, rows, d); `kept` is where its features are to stay."""
        x = q.to(torch.promote_types(q.dtype, torch.float32))
        return cls(x, phi.queries(x, kept).flatten(0, 1))


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
    def load(cls, phi: FeatureMap, k: Tensor, v: Tensor, key_mask: Tensor | None, kept: Tensor | None = None) -> Keys:
        """From k and v (batch, heads, rows, width) and a key_mask (batch, rows); `kept` is where its features are to stay."""
        x, values = (y.to(torch.promote_types(y.dtype, torch.float32)) for y in (k, v))
        features, scale = phi.keys(x, kept)
        if key_mask is not None:
            hidden = ~key_mask[:, None, :]
            if scale is None:
                features = features.masked_fill_(hidden[..., None], 0)
            else:
                scale = scale.masked_fill_(hidden, -torch.inf)
        return cls(x, features.flatten(0, 1), None if scale is None else scale.flatten(0, 1), values.flatten(0, 1))


def absorb_(sums: Sums, keys: Keys) -> Sums:
    """The sums with a chunk of keys taken in; `sums.total` is written over."""
    total, top, values = sums.total, sums.top, keys.values
    if keys.scale is None:
        norm = keys.phi.sum(dim=1)
    else:
        top = torch.maximum(sums.top, keys.scale.amax(dim=-1))
        total.mul_((sums.top - top).exp2_()[:, None, None])
        weights = (keys.scale - top[:, None]).exp2_()[..., None]
        values, norm = values * weights, (keys.phi.mT @ weights)[..., 0]
    total[..., :-1].baddbmm_(keys.phi.mT, values)
    total[..., -1].add_(norm)
    return Sums(total, top)


def absorb_backward(
    dsums: Tensor, keys: Keys, before: Sums, after: Sums, rooms: tuple[Tensor | None, Tensor | None]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the features and of the values, each in the room given for it if any, and of the sums before."""
    # A baddbmm would first spread the row.
    dphi = torch.bmm(keys.values, dsums[..., :-1].mT, out=rooms[0]).add_(dsums[..., -1].unsqueeze(1))
    dvalues = torch.bmm(keys.phi, dsums[..., :-1], out=rooms[1])
    if keys.scale is not None:
        weights = (keys.scale - after.top[:, None]).exp2_()[..., None]
        dphi, dvalues = dphi.mul_(weights), dvalues.mul_(weights)
        dsums = dsums * (before.top - after.top).exp2_()[:, None, None]
    return dphi, dvalues, dsums


def read(sums: Sums, queries: Queries, keys: Keys | None) -> Tensor:
    """[numerator, normaliser] (.., rows, e + 1) over the sums, and over the keys of the same rows up to each query."""
    summed = torch.bmm(queries.phi, sums.total)
    if keys is None:
        return summed
    factors, carry = _triangle(sums.top, keys)
    if carry is not None:
        summed.mul_(carry)
    weights = (queries.phi @ keys.phi.mT).mul_(factors)
    summed[..., :-1].baddbmm_(weights, keys.values)
    summed[..., -1].add_(weights.sum(dim=-1))
    return summed


def read_backward(
    grad: Tensor,
    sums: Sums,
    queries: Queries,
    keys: Keys | None,
    dphi: Tensor,
    dvalues: Tensor,
    dsums: Tensor,
    room: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Gradients of the queries' features (in `room` where there is one) and of the sums.

    Those of the keys' features and values are added in place.
    """
    if keys is None:
        return torch.bmm(grad, sums.total.mT, out=room), torch.baddbmm(dsums, queries.phi.mT, grad)
    factors, carry = _triangle(sums.top, keys)
    weights = (queries.phi @ keys.phi.mT).mul_(factors)
    dvalues.baddbmm_(weights.mT, grad[..., :-1])
    dweights = (grad[..., :-1] @ keys.values.mT).add_(grad[..., -1:]).mul_(factors)
    dphi.baddbmm_(dweights.mT, queries.phi)
    dqueries = torch.bmm(dweights, keys.phi, out=room)
    if carry is not None:
        grad = grad * carry
    return dqueries.baddbmm_(grad, sums.total.mT), torch.baddbmm(dsums, queries.phi.mT, grad)


def _triangle(top: Tensor, keys: Keys) -> tuple[Tensor, Tensor | None]:
    """Factors (.., rows, rows) of the weights inside a chunk, and (.., rows, 1) of what the earlier sums give (None: 1).

    Each row is in units of the largest scale that it sees, so that no later key can make the earlier ones vanish.
    """
    if keys.scale is None:
        rows = keys.phi.shape[1]
        return keys.phi.new_ones(rows, rows).tril_(), None
    tops = torch.maximum(top[:, None], keys.scale.cummax(dim=-1).values)
    return (keys.scale[:, None, :] - tops[..., None]).exp2_().tril_(), (top[:, None] - tops).exp2_()[..., None]
