"""Shapes: any length, any batch, and defaults that work as they are."""

from __future__ import annotations

import torch

from attnbench.conformance.core import expect, expect_close, expect_finite, promise
from attnbench.conformance.oracle import states_reference
from attnbench.conformance.subject import Subject


@promise("any-length")
def any_length(subject: Subject) -> None:
    """Any length from 1 up works, in training and in eval; output and gradients are finite and shaped like the queries."""
    for train in (False, True):
        variant = subject.build(train=train)
        for length in subject.lengths:
            inputs = subject.inputs(length).leaves()
            out = inputs(variant)
            expect(
                out.shape == inputs.v.shape, f"output has shape {tuple(out.shape)}, expected {tuple(inputs.v.shape)}"
            )
            expect_finite(out, "output")
            out.square().sum().backward()
            for name, tensor in inputs.tensors.items():
                if tensor.grad is not None:
                    expect_finite(tensor.grad, f"gradient of {name}")


@promise("empty-batch")
def empty_batch(subject: Subject) -> None:
    """A batch without samples gives an output without samples."""
    for train in (False, True):
        inputs = subject.inputs(5, batch=0)
        out = inputs(subject.build(train=train))
        expect(out.shape == inputs.v.shape, f"output has shape {tuple(out.shape)}, expected {tuple(inputs.v.shape)}")


@promise("defaults")
def defaults(subject: Subject) -> None:
    """The variant works with its own options left at their defaults, and agrees with its reference there."""
    plain = Subject(subject.name, {}, causal=subject.causal, heads=subject.heads, device=subject.device)
    plain.settings = subject.settings
    for length in (5, 150):
        variant = plain.build(dtype=plain.exact)
        inputs = plain.inputs(length, batch=1, dtype=plain.exact)
        with torch.no_grad():
            out = inputs(variant)
            expect_finite(out, "output")
            if states_reference(variant):
                expect_close(out, inputs(variant.reference), "output against reference", plain.tolerance(plain.exact))


@promise("fresh-memory")
def fresh_memory(subject: Subject) -> None:
    """No output or gradient depends on uninitialised memory: fresh memory is poisoned with NaN."""
    was = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    variant = subject.build()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)  # which fills fresh memory with NaN
        for mask in subject.masks(2, 33):
            inputs = subject.inputs(33).masked(mask).leaves()
            out = inputs(variant)
            expect_finite(out, "output")
            out.sum().backward()
            for name, tensor in inputs.tensors.items():
                if tensor.grad is not None:
                    expect_finite(tensor.grad, f"gradient of {name}")
    finally:
        torch.use_deterministic_algorithms(was[0], warn_only=was[1])
