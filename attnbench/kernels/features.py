"""Feature maps of linear attention: what turns queries and keys into the vectors whose products are the weights.

A map gives phi(q) >= 0 for queries, and for keys phi(k) >= 0 with, where it needs one, a log2 scale s for each key, so that
the weight of key j for query i is  phi(q_i) . phi(k_j) 2^(s_j)  up to a factor of the row, which the normaliser takes out.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["FEATURES", "FeatureMap", "feature_map"]

LOG2_E = math.log2(math.e)


class FeatureMap(Protocol):
    """Features (..., n, width) of x (..., n, d), and the gradients of x under them."""

    def width(self, d: int) -> int: ...

    def queries(self, x: Tensor) -> Tensor: ...

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor | None]: ...

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor: ...

    def keys_backward(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor: ...


class _Elementwise:
    """A map that acts on each element alone; its slope is a function of its value."""

    def width(self, d: int) -> int:
        return d

    def queries(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def slope(self, phi: Tensor) -> Tensor:
        raise NotImplementedError

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.queries(x), None

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        return self.slope(phi).mul_(grad)

    keys_backward = queries_backward


class Elu(_Elementwise):
    """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, equation 7)."""

    def queries(self, x: Tensor) -> Tensor:
        # exp(x) below zero, where elu(x) + 1 would round to zero far too soon; x + 1 above.
        return x.clamp(max=0).mul_(LOG2_E).exp2_().add_(x.clamp(min=0))

    def slope(self, phi: Tensor) -> Tensor:
        return phi.clamp(max=1)


class Relu(_Elementwise):
    """phi(x) = relu(x)."""

    def queries(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    def slope(self, phi: Tensor) -> Tensor:
        return phi.sign()


class PositiveRandom:
    """phi(x) = exp(W y - |y|^2 / 2) with y = x / d^(1/4) (Choromanski et al. 2021, lemma 1).

    The largest exponent of each token is taken out before the exponential: for a query it is a factor of its row, for a key it
    goes into the key's scale, together with |y|^2 / 2. Both are exact, and depend on no other token.
    """

    def __init__(self, projection: Tensor) -> None:
        self.scale = projection.shape[1] ** -0.5
        self.projection = projection * (LOG2_E * self.scale**0.5)

    def width(self, d: int) -> int:
        return self.projection.shape[0]

    def _exponents(self, x: Tensor) -> tuple[Tensor, Tensor]:
        exponents = x @ self.projection.T
        largest = exponents.amax(dim=-1, keepdim=True)
        return exponents.sub_(largest).exp2_(), largest.squeeze(-1)

    def queries(self, x: Tensor) -> Tensor:
        return self._exponents(x)[0]

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        phi, largest = self._exponents(x)
        return phi, largest.sub_(x.square().sum(dim=-1), alpha=0.5 * LOG2_E * self.scale)

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        return (phi * grad) @ (self.projection / LOG2_E)

    def keys_backward(self, x: Tensor, phi: Tensor, grad: Tensor) -> Tensor:
        slope = phi * grad
        return (slope @ (self.projection / LOG2_E)).sub_(x * slope.sum(dim=-1, keepdim=True), alpha=self.scale)


FEATURES = {"elu": Elu, "relu": Relu}


def feature_map(name: str, projection: Tensor | None, dtype: torch.dtype) -> FeatureMap:
    """The map of that name, which computes in `dtype`; "random" takes the projection (features, d)."""
    if name == "random":
        assert projection is not None
        return PositiveRandom(projection.to(dtype))
    return FEATURES[name]()
