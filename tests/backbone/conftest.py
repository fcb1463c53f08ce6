from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attnbench import Stream, Supports, Variant, register, registry


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def ragged() -> Callable[..., Tensor]:
    """Makes a right-padded mask (batch, n) with lengths from 1 to n, the first sample being whole."""

    def make(batch: int, n: int, seed: int = 0) -> Tensor:
        lengths = torch.randint(1, n + 1, (batch,), generator=torch.Generator().manual_seed(seed))
        lengths[0] = n
        return torch.arange(n) < lengths[:, None]

    return make


class GatedValues(Variant):
    """Reads v and two streams, and neither q nor k."""

    def mix(self, q: Any, k: Any, v: Tensor, key_mask: Tensor | None, **streams: Tensor) -> Tensor:
        assert q is None
        assert k is None
        return v * streams["gate"].sigmoid() + streams["x"].sum(dim=-1, keepdim=True)


class FirstTokens(Variant):
    """Every token sees itself and the mean of the first `tokens`, which the backbone prepends."""

    def __init__(self, *, tokens: int = 2, **common: Any) -> None:
        super().__init__(**common)
        self.tokens = tokens

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return v + v[:, :, : self.tokens].mean(dim=2, keepdim=True)


class Prefix(Variant):
    """A running sum over values, causal, but without a state to decode from."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return v.cumsum(dim=2) + 0 * q + 0 * k


@pytest.fixture(autouse=True, scope="module")
def stand_ins() -> Iterator[None]:
    """Variants that show one need of the backbone each; known to these tests alone."""
    declared = {
        "test-gated-values": (
            GatedValues,
            Supports(reads=("v",), streams=(Stream("x", 3), Stream("gate")), padding=True),
        ),
        "test-first-tokens": (FirstTokens, Supports(padding=True, max_len=True, global_tokens="tokens")),
        "test-prefix": (Prefix, Supports(causal=True, bidirectional=False)),
    }
    for name, (cls, supports) in declared.items():
        register(name, supports=supports)(cls)
    yield
    for name in declared:
        del registry._variants[name]
