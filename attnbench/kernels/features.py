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
    """Features (..., n, width) of x (..., n, d), written into `kept` where given; and the gradient of x, written into `out`.

    The gradient of the features that comes in may lie in the same memory as `out`.
    """

    def width(self, d: int) -> int: ...

    def queries(self, x: Tensor, kept: Tensor | None = None) -> Tensor: ...

    def keys(self, x: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor | None]: ...

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None: ...

    def keys_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None: ...


class _Elementwise:
    """A map that acts on each element alone, and whose slope is a function of its value.

    Backward then needs no x, so that features of x's own size may be kept in its stead: with `given`, x is features already.
    """

    def __init__(self, given: bool = False) -> None:
        self.given = given

    def width(self, d: int) -> int:
        return d

    def features(self, x: Tensor, kept: Tensor | None) -> Tensor:
        raise NotImplementedError

    def slope(self, phi: Tensor) -> Tensor:
        raise NotImplementedError

    def queries(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        return x if self.given else self.features(x, kept)

    def keys(self, x: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.queries(x, kept), None

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None:
        slope = self.slope(phi)
        if grad.data_ptr() == out.data_ptr():
            grad.mul_(slope)
        else:
            torch.mul(slope.unflatten(0, out.shape[:2]), grad.unflatten(0, out.shape[:2]), out=out)

    keys_backward = queries_backward


class Elu(_Elementwise):
    """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, equation 7)."""

    def features(self, x: Tensor, kept: Tensor | None) -> Tensor:
        # exp(x) below zero, where (exp(x) - 1) + 1 would lose its digits; x + 1 above. torch's own elu is also slower.
        return torch.clamp(x, max=0, out=kept).exp_().add_(x.clamp(min=0))

    def slope(self, phi: Tensor) -> Tensor:
        return phi.clamp(max=1)


class Relu(_Elementwise):
    """phi(x) = relu(x)."""

    def features(self, x: Tensor, kept: Tensor | None) -> Tensor:
        return torch.clamp(x, min=0, out=kept)

    def slope(self, phi: Tensor) -> Tensor:
        return phi.sign()


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

    def queries(self, x: Tensor, kept: Tensor | None = None) -> Tensor:
        return self._exponentials(x)[0]

    def keys(self, x: Tensor, kept: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        phi, largest = self._exponentials(x)
        return phi, largest.sub_(x.square().sum(dim=-1), alpha=0.5 * LOG2_E * self.scale)

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None:
        self._exponents_backward(grad.mul_(phi), out)

    def keys_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None:
        weighted = grad.mul_(phi)
        norms = weighted.sum(dim=-1, keepdim=True).unflatten(
            0, out.shape[:2]
        )  # before `out` is written: it may be `grad`
        self._exponents_backward(weighted, out)
        out.sub_(x * norms, alpha=self.scale)

    def _exponents_backward(self, weighted: Tensor, out: Tensor) -> None:
        torch.div((weighted @ self.projection).unflatten(0, out.shape[:2]), LOG2_E, out=out)


FEATURES = {"elu": Elu, "relu": Relu}


def feature_map(name: str, projection: Tensor | None, dtype: torch.dtype, given: bool = False) -> FeatureMap:
    """The map of that name, which computes in `dtype`; "random" takes the projection (features, d)."""
    if name == "random":
        assert projection is not None
        return PositiveRandom(projection.to(dtype))
    return FEATURES[name](given)
