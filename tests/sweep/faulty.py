"""Variants that are right at the short lengths where the gate looks, and go wrong at the option `at` and above."""

from __future__ import annotations

import ctypes
import os
import time

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench import Supports, Variant, register
from attnbench.capabilities import Growth

SUPPORTS = Supports(cross=True, memory=Growth("n d", 1.0))


class Faulty(Variant):
    """Full attention, until `at`."""

    def __init__(self, *, at: int = 500, **common: object) -> None:
        super().__init__(**common)  # type: ignore[arg-type]
        self.at = at

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if q.shape[2] >= self.at:
            self.go_wrong()
        return scaled_dot_product_attention(q, k, v)

    def dense_weights(self, q: Tensor, k: Tensor, *, key_mask: Tensor | None = None) -> Tensor:
        return (q @ k.transpose(-1, -2) * self.head_dim**-0.5).softmax(dim=-1)

    def go_wrong(self) -> None:
        raise ValueError("too long for me")


@register("fine", supports=SUPPORTS)
class Fine(Faulty):
    """Does nothing wrong."""

    def go_wrong(self) -> None:
        pass


@register("twice", supports=SUPPORTS)
class Twice(Fine):
    """Does its work twice."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        super().mix(q, k, v, key_mask)
        return super().mix(q, k, v, key_mask)


@register("raises", supports=SUPPORTS)
class Raises(Faulty):
    """Raises."""


@register("hangs", supports=SUPPORTS)
class Hangs(Faulty):
    """Never comes back."""

    def go_wrong(self) -> None:
        while True:
            time.sleep(0.01)


@register("leaves", supports=SUPPORTS)
class Leaves(Faulty):
    """Ends its process."""

    def go_wrong(self) -> None:
        os._exit(7)


@register("crashes", supports=SUPPORTS)
class Crashes(Faulty):
    """Reads where there is nothing."""

    def go_wrong(self) -> None:
        ctypes.string_at(0)


@register("eats", supports=SUPPORTS)
class Eats(Faulty):
    """Takes all the memory there is."""

    def go_wrong(self) -> None:
        held = []
        while True:
            held.append(torch.ones(1 << 22))


@register("wrong", supports=SUPPORTS)
class Wrong(Faulty):
    """Computes something else than it says."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return super().mix(q, k, v, key_mask) + 1


@register("bounded", supports=Supports(max_len=True))
class Bounded(Fine):
    """Needs to know the longest length."""


@register("causal-only", supports=Supports(causal=True, bidirectional=False))
class CausalOnly(Fine):
    """Has no bidirectional form."""


@register("pretender", supports=SUPPORTS)
class Pretender(Variant):
    """Takes the option that the pretended isolation reads."""

    def __init__(self, *, fail: object = None, at: int = 0, **common: object) -> None:
        super().__init__(**common)  # type: ignore[arg-type]


ALL = [Fine, Twice, Raises, Hangs, Leaves, Crashes, Eats, Wrong, Bounded, CausalOnly, Pretender]
