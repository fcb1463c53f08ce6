"""Feature maps of linear attention: what turns queries and keys into the vectors whose products are the weights.

A map gives phi(q) >= 0 for queries, and for keys phi(k) >= 0 with, where it needs one, a log2 scale s for each key, so that
the weight of key j for query i is  phi(q_i) . phi(k_j) 2^(s_j)  up to a factor of the row, which the normaliser takes out.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from attnbench.kernels.pieces import LOG2_E
from attnbench.kernels.rooms import Rooms
from attnbench.kernels.tokens import flat_rows

__all__ = ["FEATURES", "FeatureMap", "feature_map"]

# Rows whose distance is a multiple of STRIDE elements fall into few places of a cache, unless a GAP lies between them.
STRIDE, GAP = 256, 16


class FeatureMap(Protocol):
    """Features (..., n, width) of x (..., n, d), written into `kept` where given; and the gradient of x, written into `out`.

    `spare` is memory of x's shape (backward: of the features') that may be written over on the way. The gradient of the
    features that comes in may lie in the same memory as `out`.
    """

    def width(self, d: int) -> int: ...

    def gradient_room(self, kind: str, out: Tensor, dtype: torch.dtype) -> Tensor | None:
        """Memory (batch * heads, n, width) for the features' gradient where it is best written; None: anywhere."""

    def queries(self, x: Tensor, kept: Tensor | None = None, spare: Tensor | None = None) -> Tensor: ...

    def keys(
        self, x: Tensor, kept: Tensor | None = None, spare: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]: ...

    def queries_backward(
        self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor, spare: Tensor | None = None
    ) -> None: ...

    def keys_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None: ...


class _Elementwise:
    """A map that acts on each element alone, and whose slope is a function of its value.

    Backward then needs no x, so that features of x's own size may be kept in its stead: with `given`, x is features already.
    """

    def __init__(self, given: bool = False) -> None:
        self.given = given

    def width(self, d: int) -> int:
        return d

    def gradient_room(self, kind: str, out: Tensor, dtype: torch.dtype) -> Tensor | None:
        return flat_rows(out, out.shape[3], dtype)

    def features(self, x: Tensor, kept: Tensor | None, spare: Tensor | None) -> Tensor:
        raise NotImplementedError

    def slope(self, phi: Tensor, spare: Tensor | None) -> Tensor:
        raise NotImplementedError

    def queries(self, x: Tensor, kept: Tensor | None = None, spare: Tensor | None = None) -> Tensor:
        return x if self.given else self.features(x, kept, spare)

    def keys(self, x: Tensor, kept: Tensor | None = None, spare: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return self.queries(x, kept, spare), None

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor, spare: Tensor | None = None) -> None:
        slope = self.slope(phi, spare)
        if grad.data_ptr() == out.data_ptr():
            grad.mul_(slope)
        else:
            torch.mul(slope.unflatten(0, out.shape[:2]), grad.unflatten(0, out.shape[:2]), out=out)

    keys_backward = queries_backward


class Elu(_Elementwise):
    """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, equation 7)."""

    def features(self, x: Tensor, kept: Tensor | None, spare: Tensor | None) -> Tensor:
        # exp(x) below zero, where (exp(x) - 1) + 1 would lose its digits; x + 1 above. torch's own elu is also slower.
        return torch.mul(x, LOG2_E, out=kept).clamp_(max=0).exp2_().add_(torch.clamp(x, min=0, out=spare))

    def slope(self, phi: Tensor, spare: Tensor | None) -> Tensor:
        return torch.clamp(phi, max=1, out=spare)


class Relu(_Elementwise):
    """phi(x) = relu(x)."""

    def features(self, x: Tensor, kept: Tensor | None, spare: Tensor | None) -> Tensor:
        return torch.clamp(x, min=0, out=kept)

    def slope(self, phi: Tensor, spare: Tensor | None) -> Tensor:
        return torch.sign(phi, out=spare)


class PositiveRandom:
    """phi(x) = exp(W y - |y|^2 / 2) with y = x / d^(1/4) (Choromanski et al. 2021, lemma 1).

    |y|^2 / 2 cancels for a query, and is the scale of a key. Where a chunk has exponents W y beyond `LIMIT`, each token's
    largest is taken out as well: for a query it is a factor of its row, for a key it goes into the key's scale. Both are
    exact. Exponents are of two: on a CPU exp2 may be several times as fast as exp, and does not slow down where it underflows.

    Features of one chunk stay until the next chunk's take their place: those of its own kind where `together`, queries' and
    keys' being needed at one time, else of either kind. They lie features by tokens, which is how the sums read them fastest.
    """

    # Products of two such features, summed over a million keys, are far from overflow and from underflow.
    LIMIT = 30.0 * LOG2_E

    def __init__(self, projection: Tensor, together: bool = True) -> None:
        self.together = together
        self.scale = projection.shape[1] ** -0.5
        self.projection = projection * self.scale**0.5
        self.exponents = self.projection * LOG2_E
        self.rooms = Rooms(projection)

    def width(self, d: int) -> int:
        return self.projection.shape[0]

    def _exponentials(self, kind: str, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """(batch, heads, rows, features), and the log2 (batch, heads, rows) of what was taken out of each row, if anything."""
        lead, x = x.shape[:2], x.flatten(0, 1)
        room = self._room("features", kind, *x.shape[:2])
        exponents = torch.bmm(self.exponents.expand(len(x), -1, -1), x.mT, out=room)
        largest = None
        if not self._moderate(exponents):
            largest = exponents.amax(dim=1, keepdim=True)
            exponents.sub_(largest)
            largest = largest.squeeze(1).unflatten(0, lead)
        return exponents.exp2_().mT.unflatten(0, lead), largest

    def gradient_room(self, kind: str, out: Tensor, dtype: torch.dtype) -> Tensor | None:
        return self._room("gradients", kind, out.shape[0] * out.shape[1], out.shape[2]).mT

    def _room(self, what: str, kind: str, lead: int, rows: int) -> Tensor:
        """Memory (batch * heads, features, rows), the same for every chunk."""
        name = f"{what} of {kind}" if self.together else what
        stride = rows + (GAP if rows % STRIDE == 0 else 0)
        return self.rooms.empty(name, self.projection.dtype, lead, self.projection.shape[0], stride)[..., :rows]

    def _moderate(self, exponents: Tensor) -> bool:
        if exponents.device.type != "cpu" or not exponents.numel() or torch.compiler.is_compiling():
            return False  # the answer would stall another device, and cannot be part of a graph
        lowest, highest = exponents.amin(), exponents.amax()  # quicker than aminmax, which copies what has gaps
        return bool(torch.maximum(-lowest, highest) <= self.LIMIT)

    def queries(self, x: Tensor, kept: Tensor | None = None, spare: Tensor | None = None) -> Tensor:
        return self._exponentials("queries", x)[0]

    def keys(self, x: Tensor, kept: Tensor | None = None, spare: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        phi, largest = self._exponentials("keys", x)
        norms = torch.linalg.vector_norm(x, dim=-1).square_().mul_(-0.5 * LOG2_E * self.scale)
        return phi, norms if largest is None else norms.add_(largest)

    def queries_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor, spare: Tensor | None = None) -> None:
        out.copy_((grad.mul_(phi) @ self.projection).unflatten(0, out.shape[:2]))

    def keys_backward(self, x: Tensor, phi: Tensor, grad: Tensor, out: Tensor) -> None:
        self.queries_backward(x, phi, grad, out)  # grad lies in a room of its own, weighted by phi now
        out.sub_(x * grad.sum(dim=-1, keepdim=True).unflatten(0, out.shape[:2]), alpha=self.scale)


FEATURES = {"elu": Elu, "relu": Relu}


def feature_map(
    name: str, projection: Tensor | None, dtype: torch.dtype, *, together: bool, given: bool = False
) -> FeatureMap:
    """The map of that name, which computes in `dtype`; "random" takes the projection (features, d).

    together: whether features of queries and of keys are needed at one time.
    """
    if name == "random":
        assert projection is not None
        return PositiveRandom(projection.to(dtype), together)
    return FEATURES[name](given)
