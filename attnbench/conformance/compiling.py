"""Compiling: where declared, the whole graph is captured, and gives what eager execution gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.conformance.core import expect_close, promise, require
from attnbench.conformance.oracle import run_and_differentiate
from attnbench.conformance.subject import Inputs, Subject
from attnbench.contract import Variant

LENGTHS = (33, 20)


def _require_compiles(subject: Subject) -> None:
    notes = "; ".join(subject.supports.notes)
    require(subject.supports.compiles, f"does not declare that it compiles{': ' + notes if notes else ''}")


@promise("compile")
def compiles(subject: Subject) -> None:
    """`torch.compile(fullgraph=True)` gives the eager output and gradients, and compiled state loads uncompiled."""
    wrapped = _compiled_equals_eager(subject, LENGTHS[:1], dynamic=False)
    subject.build(seed=99).load_state_dict(wrapped.state_dict(), strict=True)


@promise("compile-dynamic")
def compiles_any_length(subject: Subject) -> None:
    """Compiled with the length as a symbol, one graph gives the eager output and gradients at every length."""
    _compiled_equals_eager(subject, LENGTHS, dynamic=True)


def _compiled_equals_eager(subject: Subject, lengths: Sequence[int], *, dynamic: bool) -> Variant:
    _require_compiles(subject)
    eager, wrapped = subject.build(), subject.build()
    subject.note(dynamic=dynamic)
    torch._dynamo.reset()  # else the limit on recompilations counts those of every variant before
    wrapped.compile(fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for length in lengths:
        mask = subject.padding(2, length) if subject.supports.padding else None
        inputs = subject.inputs(length).masked(mask)
        expected = run_and_differentiate(eager, inputs, eager)
        for name, actual in run_and_differentiate(wrapped, inputs, wrapped).items():
            expect_close(actual, expected[name], f"compiled {name} against eager", 1e-4)
    return wrapped


@promise("export")
def exports(subject: Subject) -> None:
    """`torch.export` captures the forward pass, and the exported program gives the eager output."""
    _require_compiles(subject)
    eager = subject.build()
    inputs = subject.inputs(20)
    inputs = inputs.masked(subject.padding(2, 20) if subject.supports.padding else None)
    with torch.no_grad():
        program = torch.export.export(_Positional(eager, inputs), tuple(inputs.tensors.values()), strict=False)
        actual = program.module()(*inputs.tensors.values())
        expect_close(actual, inputs(eager), "exported output against eager", 1e-4)


class _Positional(nn.Module):
    """The variant as a function of the tensors it reads, since an exported program takes no None in their place."""

    def __init__(self, variant: Callable[..., Tensor], inputs: Inputs) -> None:
        super().__init__()
        self.variant, self.names = variant, list(inputs.tensors)
        self.streams = list(inputs.streams)
        self.register_buffer("key_mask", inputs.key_mask)

    def forward(self, *tensors: Tensor) -> Any:
        given = dict(zip(self.names, tensors, strict=True))
        streams = {name: given.pop(name) for name in self.streams}
        return self.variant(given.get("q"), given.get("k"), given["v"], key_mask=self.key_mask, **streams)
