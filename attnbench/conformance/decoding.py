"""Decoding: token by token gives what the whole sequence at once gives."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.conformance.core import expect_close, promise, require
from attnbench.conformance.subject import Inputs, Subject, length_mask
from attnbench.contract import Variant

STEPS = 9


def decode(variant: Variant, prompt: Inputs, steps: Inputs) -> tuple[Tensor, Tensor]:
    """The prompt's output, and those of the steps (batch, heads, steps, head_dim)."""
    out, state = variant.prefill(prompt.q, prompt.k, prompt.v, prompt.key_mask, **prompt.streams)  # type: ignore[arg-type]
    outputs = []
    for position in range(steps.v.shape[2]):
        token = steps.take(slice(None), slice(position, position + 1))
        one, state = variant.step(token.q, token.k, token.v, state, **token.streams)  # type: ignore[arg-type]
        outputs.append(one)
    return out, torch.cat(outputs, dim=2)


@promise("decoding-steps")
def decoding(subject: Subject) -> None:
    """A prompt's `prefill` and one `step` per further token give what the forward pass over them all gives."""
    require(subject.supports.decode and subject.causal, "does not decode token by token")
    variant = subject.build(dtype=subject.exact)
    tolerance = subject.tolerance(subject.exact)
    for length in (1, 2, 7, 16, 33):
        whole = subject.inputs(length + STEPS, dtype=subject.exact)
        subject.note(prompt=length, steps=STEPS)
        with torch.no_grad():
            expected = whole(variant)
            prompt, rest = whole.take(slice(None), slice(length)), whole.take(slice(None), slice(length, None))
            out, stepped = decode(variant, prompt, rest)
        expect_close(out, expected[:, :, :length], "output of prefill", tolerance)
        expect_close(stepped, expected[:, :, length:], "output of the steps", tolerance)


@promise("decoding-padded")
def decoding_padded(subject: Subject) -> None:
    """Decoding after right-padded prompts gives each sample what it gets alone, without the padding."""
    require(subject.supports.decode and subject.causal, "does not decode token by token")
    require(subject.supports.padding, "takes no key_mask")
    variant = subject.build(dtype=subject.exact)
    tolerance = subject.tolerance(subject.exact)
    lengths, padded = [17, 9, 1], 17
    prompt = subject.inputs(padded, batch=3, dtype=subject.exact)
    steps = subject.inputs(STEPS, batch=3, seed=7, dtype=subject.exact)
    subject.note(prompt=f"real lengths {lengths}", steps=STEPS)
    with torch.no_grad():
        masked = prompt.masked(length_mask(lengths, padded, subject.device))
        out, stepped = decode(variant, masked, steps)
        for sample, length in enumerate(lengths):
            alone = slice(sample, sample + 1)
            expected = decode(variant, prompt.take(alone, slice(length)), steps.take(alone))
            what = f"sample of length {length}"
            expect_close(out[alone, :, :length], expected[0], f"output of prefill, {what},", tolerance)
            expect_close(stepped[alone], expected[1], f"output of the steps, {what},", tolerance)


@promise("decoding-state")
def decoding_state(subject: Subject) -> None:
    """A step leaves the state it was given as it was, so that two continuations of one prompt can go on from it."""
    require(subject.supports.decode and subject.causal, "does not decode token by token")
    variant = subject.build()
    prompt, steps = subject.inputs(9), subject.inputs(STEPS, seed=7)
    with torch.no_grad():
        _, state = variant.prefill(prompt.q, prompt.k, prompt.v, None, **prompt.streams)  # type: ignore[arg-type]
        token, other = steps.take(slice(None), slice(1)), steps.take(slice(None), slice(1, 2))
        outputs = []
        for branch in (token, other, token):
            out, _ = variant.step(branch.q, branch.k, branch.v, state, **branch.streams)  # type: ignore[arg-type]
            outputs.append(out)
    expect_close(outputs[2], outputs[0], "output of the same step from the same state, another in between,", 1e-6)
