"""Compile time, recompiles and preparation are columns of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnbench.capabilities import Supports
from attnbench.contract import Unsupported, Variant
from attnbench.measure import Workload, measure_compile
from attnbench.measure.compilation import default_backend
from attnbench.registry import register

SMALL = {"length": 40, "heads": 2, "head_dim": 4}


@register("compile-per-length", supports=Supports())
class PerLength(Variant):
    """Branches on the length in Python, so that every length is compiled anew."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        total = v
        for _ in range(v.shape[2]):
            total = total + v
        return total


@register("compile-breaks", supports=Supports())
class Breaks(Variant):
    """Looks at a value, which no graph can hold."""

    def mix(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return v + 1 if float(v.sum()) > 0 else v - 1


@register("compile-refuses", supports=Supports(compiles=False, notes=("branches on values",)))
class Refuses(Variant):
    """Declares that it does not compile."""


def test_one_module_over_lengths_is_compiled_once_and_once_more_for_any_length():
    measured = measure_compile(Workload("full", **SMALL), backend="aot_eager")
    assert measured.unit == "s"
    assert measured.details["graphs"] == 1
    assert measured.details["recompiles"] <= 1
    assert measured.details["lengths"] == [4, 8, 12, 16, 20, 24, 28, 32, 36, 40]
    assert {"construct", "masks", "eager", "compiled", "recompile_seconds"} <= set(measured.details)


def test_recompiles_for_every_length_are_seen():
    measured = measure_compile(Workload("compile-per-length", **SMALL), backend="aot_eager", lengths=[3, 4, 5])
    assert measured.details["recompiles"] == 3


def test_a_broken_graph_shows():
    measured = measure_compile(Workload("compile-breaks", **SMALL), backend="aot_eager", lengths=[40])
    assert measured.details["graphs"] > 1


def test_training_compiles_too():
    measured = measure_compile(Workload("full", mode="train_step", **SMALL), backend="aot_eager", lengths=[40])
    assert measured.details["graphs"] == 1
    assert measured.details["recompiles"] == 0


def test_a_variant_that_declares_it_cannot_is_unsupported():
    with pytest.raises(Unsupported, match="compile-refuses does not compile: branches on values"):
        measure_compile(Workload("compile-refuses", **SMALL))
    with pytest.raises(Unsupported, match="not for decode"):
        measure_compile(Workload("full", mode="decode", causal=True, **SMALL))


def test_the_default_backend_asks_for_a_compiler_on_a_cpu_alone(monkeypatch):
    assert default_backend("cuda") == "inductor"
    monkeypatch.setenv("PATH", "")
    assert default_backend("cpu") == "aot_eager"
    assert torch._dynamo.lookup_backend("aot_eager") is not None
