"""Precision: half types, autocast, long sums and large logits."""

from __future__ import annotations

from typing import Any

import torch

from attnbench.conformance.core import expect, expect_close, expect_finite, promise, require
from attnbench.conformance.subject import Inputs, Subject, length_mask

LONG = 2048  # sums of this many terms stall in bfloat16 and overflow in float16
STEEP = 2.5e4  # magnitude of a logit; float16 ends at 65504


@promise("dtypes")
def dtypes(subject: Subject) -> None:
    """Every dtype gives a finite output of the input's dtype, and finite gradients, in training and in eval."""
    for dtype in subject.dtypes:
        for train in (False, True):
            variant = subject.build(dtype=dtype, train=train)
            for mask in subject.masks(2, 33):
                inputs = subject.inputs(33, dtype=dtype, scale=3.0).masked(mask)
                _expect_sound(variant, inputs, dtype)


@promise("autocast")
def autocast(subject: Subject) -> None:
    """Under autocast the output is finite, has the input's dtype and is near the one without, and so are the gradients."""
    for inner in (dtype for dtype in subject.dtypes if dtype != torch.float32):
        variant = subject.build()
        for outer in (torch.float32, inner):
            inputs = subject.inputs(33, dtype=outer)
            subject.note(autocast=str(inner).removeprefix("torch."))
            with torch.autocast(subject.device, dtype=inner):
                _expect_sound(variant, inputs, outer)


def _expect_sound(variant: torch.nn.Module, inputs: Inputs, dtype: torch.dtype) -> None:
    inputs = inputs.leaves()
    out = inputs(variant)
    expect(out.dtype == dtype, f"output has dtype {out.dtype}, expected {dtype}")
    expect_finite(out, "output")
    out.float().sum().backward()
    for name, tensor in inputs.tensors.items():
        if tensor.grad is not None:
            expect_finite(tensor.grad, f"gradient of {name}")


@promise("long-sums")
def long_sums(subject: Subject) -> None:
    """In half precision a sum over thousands of tokens neither overflows nor stalls: within 5e-2 of float32."""
    for dtype in (dtype for dtype in subject.dtypes if dtype != torch.float32):
        changes: dict[str, Any] = {"max_len": LONG} if subject.supports.max_len else {}
        half = subject.build(dtype=dtype, **changes)
        single = subject.build(**changes)
        single.load_state_dict(half.state_dict())
        # All tokens alike: every sum takes the same sign, and no choice among tokens hangs on a rounding.
        inputs = subject.inputs(LONG, batch=1, dtype=dtype).map(lambda tensor: tensor[:, :, :1].expand_as(tensor))
        subject.note(content="all tokens alike")
        with torch.no_grad():
            actual, expected = inputs(half), inputs.map(torch.Tensor.float)(single)
        expect_close(actual, expected, "output against float32", 5e-2)


@promise("large-logits")
def large_logits(subject: Subject) -> None:
    """Logits near -3e4 on the visible keys let no hidden key through, in float16 as in float32."""
    require({"q", "k"} <= set(subject.supports.reads), "forms no logits from q and k")
    require(subject.supports.padding or subject.causal, "neither causal nor padded: no key is hidden")
    length, real = 24, 15
    for dtype in (dtype for dtype in subject.dtypes if dtype != torch.bfloat16):
        variant = subject.build(dtype=dtype)
        inputs = subject.inputs(length, dtype=dtype, scale=0.01)
        side = (STEEP / subject.head_dim**0.5) ** 0.5
        steep = inputs.map(lambda tensor, side=side: torch.full_like(tensor, side), ["q"])  # type: ignore[misc]
        # No two keys alike, or a method that selects might choose among equals by their number.
        steep = steep.map(lambda tensor, side=side: -side * (1 + 10 * tensor), ["k"])  # type: ignore[misc]
        steep = steep.map(lambda tensor: tensor + 1, ["v"])  # a leak of zero-filled values pulls the output to zero
        subject.note(logits=-STEEP)
        with torch.no_grad():
            short = steep.take(slice(None), slice(real))(variant)
            if subject.supports.padding:
                mask = length_mask([real, real], length, subject.device)
                padded = steep.masked(mask)(variant)[:, :, :real]
                expect_close(padded, short, "output beside masked keys against none", subject.tolerance(dtype))
            if subject.causal:
                later = torch.arange(length, device=subject.device)[:, None] >= real
                rising = steep.map(lambda t, later=later, side=side: t.masked_fill(later, side), ["k"])  # type: ignore[misc]
                rising = rising.map(lambda t, later=later: t.masked_fill(later, 50), ["v"])  # type: ignore[misc]
                before = rising(variant)[:, :, :real]
                expect_close(before, short, "output beside later keys of large logits", subject.tolerance(dtype))
