"""Padding: what is no token leaves no trace."""

from __future__ import annotations

import torch

from attnbench.conformance.core import expect, expect_close, expect_finite, promise, require
from attnbench.conformance.subject import Inputs, Subject, length_mask

REAL = (50, 31, 1)


@promise("padding-content")
def padding_content(subject: Subject) -> None:
    """Content at masked keys, be it 1e4 or NaN, reaches neither an output nor a gradient."""
    require(subject.supports.padding, "takes no key_mask")
    variant = subject.build()
    mask = length_mask(REAL, max(REAL) + 5, subject.device)
    inputs = subject.inputs(mask.shape[1], batch=len(REAL)).masked(mask)
    # Where keys may be another sequence than the queries, a key mask says nothing about q: it stays as it is.
    poisoned = list(inputs.tensors) if not subject.supports.cross else ["k", "v"]
    hidden = ~mask[:, None, :, None]
    before, gradients = _output_and_gradients(variant, inputs)
    for poison in (1e4, float("nan")):
        subject.note(mask=f"real lengths {list(REAL)}", masked_content=poison)
        dirty = inputs.map(lambda tensor, poison=poison: tensor.masked_fill(hidden, poison), poisoned)  # type: ignore[misc]
        after, dirty_gradients = _output_and_gradients(variant, dirty)
        expect_finite(after, "output")
        expect_close(after.masked_fill(hidden, 0), before.masked_fill(hidden, 0), "output at real tokens", 1e-5)
        for name, gradient in dirty_gradients.items():
            expect_close(gradient, gradients[name], f"gradient of {name}", 1e-4)
            if name in poisoned:
                expect(not gradient.masked_select(hidden).any(), f"gradient of {name} at masked keys is not zero")


def _output_and_gradients(variant: torch.nn.Module, inputs: Inputs) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    inputs = inputs.leaves()
    out = inputs(variant)
    assert inputs.key_mask is not None
    out.masked_fill(~inputs.key_mask[:, None, :, None], 0).square().sum().backward()
    return out.detach(), {name: tensor.grad for name, tensor in inputs.tensors.items() if tensor.grad is not None}


@promise("padding-length")
def padding_length(subject: Subject) -> None:
    """A sample gives the same output alone, right-padded in a batch, padded further, and under an all-real mask."""
    require(subject.supports.padding, "takes no key_mask")
    variant = subject.build(dtype=subject.exact)
    tolerance = subject.tolerance(subject.exact)
    whole = subject.inputs(max(REAL) + 20, batch=len(REAL), dtype=subject.exact)
    with torch.no_grad():
        alone = [whole.take(slice(sample, sample + 1), slice(length))(variant) for sample, length in enumerate(REAL)]
        for padded in (max(REAL), max(REAL) + 1, max(REAL) + 20):
            subject.note(n_q=padded, n_k=padded, mask=f"real lengths {list(REAL)}")
            out = whole.take(slice(None), slice(padded)).masked(length_mask(REAL, padded, subject.device))(variant)
            for sample, length in enumerate(REAL):
                what = f"output of the sample of length {length}, padded to {padded}, against the sample alone,"
                expect_close(out[sample, :, :length], alone[sample][0], what, tolerance)
        for sample, length in enumerate(REAL):
            subject.note(batch=1, n_q=length, n_k=length, mask="all real")
            one = whole.take(slice(sample, sample + 1), slice(length))
            masked = one.masked(length_mask([length], length, subject.device))
            expect_close(masked(variant), alone[sample], "output under an all-real mask against none", tolerance)


@promise("empty-rows")
def empty_rows(subject: Subject) -> None:
    """A sample that is all padding gives zeros and finite gradients, in every dtype, and leaves the others unchanged."""
    require(subject.supports.padding, "takes no key_mask")
    for dtype in subject.dtypes:
        variant = subject.build(dtype=dtype)
        for lengths in ([0, 20], [20, 0], [0, 0]):
            inputs = subject.inputs(24, dtype=dtype).masked(length_mask(lengths, 24, subject.device)).leaves()
            subject.note(mask=f"real lengths {lengths}")
            out = inputs(variant)
            expect_finite(out, "output")
            out.float().square().sum().backward()
            for name, tensor in inputs.tensors.items():
                if tensor.grad is not None:
                    expect_finite(tensor.grad, f"gradient of {name}")
            for sample, length in enumerate(lengths):
                if length == 0:
                    expect(
                        not out[sample].any(),
                        f"output of the sample without tokens is not zero: {out[sample].abs().max():.3g}",
                    )
                    continue
                with torch.no_grad():
                    alone = inputs.take(slice(sample, sample + 1))(variant)
                real = (out[sample, :, :length], alone[0, :, :length])
                expect_close(*real, "output of the sample beside the one without tokens", subject.tolerance(dtype))
