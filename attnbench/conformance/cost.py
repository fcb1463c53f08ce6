"""Cost: operations and memory grow with the length as declared. Both are counted, never timed."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from attnbench.capabilities import Growth
from attnbench.conformance.core import expect, promise, require
from attnbench.conformance.subject import Inputs, Subject
from attnbench.contract import Variant
from attnbench.measure.memory import peak_bytes
from attnbench.measure.operations import count_operations

SLACK = 0.2  # lower-order terms: a window's edges, padding to whole blocks
LAVISH = 1.0  # lower-order terms may outweigh the leading one for long, but not by a whole power of the length


def _lengths(subject: Subject, growth: Growth) -> tuple[int, int]:
    # Windows and ranks at their defaults must be small beside the length; what is quadratic shows it sooner and pays more,
    # and so does what goes from token to token. Powers of four, so that a number of blocks near the square root grows evenly.
    if subject.supports.sequential == "n":
        return 64, 256
    return (256, 1024) if growth.exponent >= 2 else (1024, 4096)


def _costs(
    subject: Subject, growth: Growth, cost: Callable[[Variant, Inputs], float], *, padded: bool = False
) -> list[float]:
    """The cost at two lengths, with all options at their defaults."""
    plain = Subject(subject.name, {}, causal=subject.causal, device=subject.device)
    plain.settings = subject.settings
    costs = []
    with _heap_set_aside():
        for length in _lengths(subject, growth):
            plain.max_len = length  # also where it does not bind: a number of clusters or a stride may hang on it
            variant = plain.build()
            mask = torch.arange(length, device=plain.device)[None] < length - 3 if padded else None
            costs.append(cost(variant, plain.inputs(length, batch=1).masked(mask)))
    return costs


@contextmanager
def _heap_set_aside() -> Iterator[None]:
    """Measuring memory collects garbage first, which takes most of the time where torch has filled the heap."""
    ours = gc.get_freeze_count() == 0
    if ours:
        gc.freeze()
    try:
        yield
    finally:
        if ours:
            gc.unfreeze()


def _expect_growth(what: str, unit: str, declared: Growth, costs: Sequence[float], *, least: bool = False) -> None:
    exponent = math.log(costs[1] / costs[0], 4) if min(costs) > 0 else 0.0
    shown = " and ".join(f"{cost:,.0f}" for cost in costs)
    message = f"{what} grows as n^{exponent:.2f} ({shown} {unit}), declared {declared.formula} = n^{declared.exponent}"
    expect(exponent <= declared.exponent + SLACK, message)
    expect(not least or exponent >= declared.exponent - LAVISH, message)


@promise("growth-operations")
def growth_operations(subject: Subject) -> None:
    """What a forward pass computes, flops and elements written by other operators, grows with the length as declared."""

    def operations(variant: Variant, inputs: Inputs) -> float:
        with torch.no_grad():
            by_operator, elements = count_operations(lambda: inputs(variant))
        return sum(by_operator.values()) + elements

    time = subject.supports.time
    _expect_growth("work", "operations", time, _costs(subject, time, operations), least=True)


@promise("growth-memory")
def growth_memory(subject: Subject) -> None:
    """The peak memory of a forward pass grows with the length no faster than declared."""
    require(subject.device == "cpu" or subject.device.startswith("cuda"), f"memory is not counted on {subject.device}")

    def peak(variant: Variant, inputs: Inputs) -> float:
        with torch.no_grad():
            inputs(variant)  # what a first call caches is resting state
            return peak_bytes(lambda: inputs(variant), subject.device).bytes

    # No least growth here: a kernel's workspace of fixed size may outweigh what grows.
    memory = subject.supports.memory
    _expect_growth("peak memory", "bytes", memory, _costs(subject, memory, peak))


@promise("no-dense-tensor")
def no_dense_tensor(subject: Subject) -> None:
    """A sub-quadratic variant allocates no n x n tensor, forward or backward, with a mask or without."""
    time, memory = subject.supports.time, subject.supports.memory
    require(time.exponent < 2, f"not declared sub-quadratic: time {time.formula}")
    require(subject.device == "cpu", "single allocations are counted on a CPU")

    def largest(variant: Variant, inputs: Inputs) -> float:
        def call() -> None:
            inputs.leaves()(variant).sum().backward()

        return peak_bytes(call).largest or 0

    for padded in (False, True) if subject.supports.padding else (False,):
        subject.note(mask="right-padded" if padded else "none")
        costs = _costs(subject, time, largest, padded=padded)
        _expect_growth("largest single allocation, forward and backward,", "bytes", memory, costs)
