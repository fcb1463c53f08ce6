"""Cost: operations and memory grow with the length as declared. Both are counted, never timed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from attnbench.capabilities import Growth
from attnbench.conformance.core import expect, promise, require
from attnbench.conformance.subject import Subject
from attnbench.contract import Variant
from attnbench.measure.memory import peak_bytes
from attnbench.measure.operations import count_operations

SLACK = 0.2  # lower-order terms: a window's edges, padding to whole blocks
LAVISH = 0.6  # a declaration this far above what is counted is wrong too


def _lengths(subject: Subject) -> tuple[int, int]:
    # Windows and ranks at their defaults must be small beside the length; what is quadratic shows it sooner and pays more.
    return (1024, 2048) if subject.supports.time.exponent >= 2 else (2048, 4096)


def _exponent(subject: Subject, cost: Callable[[Variant, Any], float], **inputs: Any) -> tuple[float, list[float]]:
    """The power of the length with which a cost grows, all options at their defaults, and the cost at both lengths."""
    plain = Subject(subject.name, {}, causal=subject.causal, heads=subject.heads, device=subject.device)
    plain.settings = subject.settings
    costs = []
    for length in _lengths(plain):
        plain.max_len = length if plain.supports.max_len else None
        variant = plain.build()
        call = plain.inputs(length, batch=1)
        if inputs.get("padded"):
            call = call.masked(torch.arange(length, device=plain.device)[None] < length - 3)
        costs.append(cost(variant, call))
    return (math.log2(costs[1] / costs[0]) if min(costs) > 0 else 0.0), costs


def _expect_growth(
    what: str, unit: str, declared: Growth, found: tuple[float, list[float]], *, least: bool = True
) -> None:
    exponent, costs = found
    shown = " and ".join(f"{cost:,.0f}" for cost in costs)
    message = f"{what} grows as n^{exponent:.2f} ({shown} {unit}), declared {declared.formula} = n^{declared.exponent}"
    expect(exponent <= declared.exponent + SLACK, message)
    expect(not least or exponent >= declared.exponent - LAVISH, message)


@promise("growth-operations")
def growth_operations(subject: Subject) -> None:
    """The counted operations of a forward pass grow with the length as declared, and the elements written no faster."""

    def both(variant: Variant, inputs: Any) -> float:
        with torch.no_grad():
            by_operator, elements = count_operations(lambda: inputs(variant))
        written.append(elements)
        return sum(by_operator.values())

    written: list[float] = []
    found = _exponent(subject, both)
    counted = min(found[1]) > 0  # a running mean multiplies nothing
    _expect_growth("number of operations", "flop", subject.supports.time, found, least=counted)
    exponent = math.log2(written[1] / written[0]) if min(written) > 0 else 0.0
    _expect_growth("number of elements written", "elements", subject.supports.time, (exponent, written), least=False)


@promise("growth-memory")
def growth_memory(subject: Subject) -> None:
    """The peak memory of a forward pass grows with the length as declared."""
    require(subject.device == "cpu" or subject.device.startswith("cuda"), f"memory is not counted on {subject.device}")

    def peak(variant: Variant, inputs: Any) -> float:
        with torch.no_grad():
            inputs(variant)  # what a first call caches is resting state
            return peak_bytes(lambda: inputs(variant), subject.device).bytes

    # No least growth here: a kernel's workspace of fixed size may outweigh what grows.
    _expect_growth("peak memory", "bytes", subject.supports.memory, _exponent(subject, peak), least=False)


@promise("no-dense-tensor")
def no_dense_tensor(subject: Subject) -> None:
    """A sub-quadratic variant allocates no n x n tensor, forward or backward, with a mask or without."""
    time, memory = subject.supports.time, subject.supports.memory
    require(time.exponent < 2, f"not declared sub-quadratic: time {time.formula}")
    require(subject.device == "cpu", "single allocations are counted on a CPU")

    def largest(variant: Variant, inputs: Any) -> float:
        def call() -> None:
            inputs.leaves()(variant).sum().backward()

        call()
        return peak_bytes(call).largest or 0

    for padded in (False, True) if subject.supports.padding else (False,):
        subject.note(mask="right-padded" if padded else "none")
        found = _exponent(subject, largest, padded=padded)
        _expect_growth("largest single allocation, forward and backward,", "bytes", memory, found, least=False)
