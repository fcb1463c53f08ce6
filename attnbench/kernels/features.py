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
    """Features (rows, n, width) of x (rows, n, d), and backward, which writes x's gradient and may overwrite phi and grad."""

    def width(self, d: int) -> int: ...

    def queries(self, x: Tensor) -> Tensor: ...

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor | None]: ...

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None: ...

    def keys_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None: ...


class _Elementwise:
    """A map that acts on each element alone, and whose slope is a function of its value."""

    def width(self, d: int) -> int:
        return d

    def queries(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def slope_(self, phi: Tensor) -> Tensor:
        raise NotImplementedError

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.queries(x), None

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None:
        lead = out.shape[:2]
        torch.mul(grad.unflatten(0, lead), self.slope_(phi).unflatten(0, lead), out=out)

    keys_backward = queries_backward


class Elu(_Elementwise):
    """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, equation 7)."""

    def queries(self, x: Tensor) -> Tensor:
        # exp(x) below zero, where (exp(x) - 1) + 1 would lose its digits; x + 1 above. torch's own elu is also slower.
        return x.clamp(max=0).exp_().add_(x.clamp(min=0))

    def slope_(self, phi: Tensor) -> Tensor:
        return phi.clamp_(max=1)


class Relu(_Elementwise):
    """phi(x) = relu(x)."""

    def queries(self, x: Tensor) -> Tensor:
        return x.clamp(min=0)

    def slope_(self, phi: Tensor) -> Tensor:
        return phi.sign_()


class PositiveRandom:
    """phi(x) = exp(W y - |y|^2 / 2) with y = x / d^(1/4) (Choromanski et al. 2021, lemma 1).

    The largest exponent of each token is taken out before the exponential: for a query it is a factor of its row, for a key it
    goes into the key's scale, together with |y|^2 / 2. Both are exact, and depend on no other token. Exponents are of two:
    exp2 does not slow down where it underflows, as exp does on a CPU.
    """

    def __init__(self, projection: Tensor) -> None:
        self.scale = projection.shape[1] ** -0.5
        self.projection = projection * (LOG2_E * self.scale**0.5)

    def width(self, d: int) -> int:
        return self.projection.shape[0]

    def _exponentials(self, x: Tensor) -> tuple[Tensor, Tensor]:
        exponents = x @ self.projection.T
        largest = exponents.amax(dim=-1, keepdim=True)
        return exponents.sub_(largest).exp2_(), largest.squeeze(-1)

    def queries(self, x: Tensor) -> Tensor:
        return self._exponentials(x)[0]

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        phi, largest = self._exponentials(x)
        return phi, largest.sub_(x.square().sum(dim=-1), alpha=0.5 * LOG2_E * self.scale)

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None:
        slope = (grad.mul_(phi) @ self.projection).unflatten(0, out.shape[:2])
        torch.div(slope, LOG2_E, out=out)

    def keys_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None:
        self.queries_backward(x, phi, grad, out)
        shrink = x * grad.sum(dim=-1, keepdim=True)
        out.sub_(shrink.unflatten(0, out.shape[:2]), alpha=self.scale)


FEATURES = {"elu": Elu, "relu": Relu}


def feature_map(name: str, projection: Tensor | None, dtype: torch.dtype) -> FeatureMap:
    """The map of that name, which computes in `dtype`; "random" takes the projection (features, d)."""
    if name == "random":
        assert projection is not None
        return PositiveRandom(projection.to(dtype))
    return FEATURES[name]()
