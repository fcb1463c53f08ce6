"""Determinism: in eval an output is a function of its own sample and the state dict, and of nothing else."""

from __future__ import annotations

import random

import torch

from attnbench.conformance.core import expect, expect_close, expect_same, promise
from attnbench.conformance.subject import Subject


@promise("batch-independence")
def batch_independence(subject: Subject) -> None:
    """In eval a sample's output does not depend on the others in its batch."""
    variant = subject.build(dtype=subject.exact)
    inputs = subject.inputs(21, batch=3, dtype=subject.exact)
    loud = inputs.map(lambda tensor: torch.cat([tensor[:1], 50 * tensor[1:]]))
    with torch.no_grad():
        together, beside, alone = inputs(variant), loud(variant), inputs.take(slice(1))(variant)
    expect_close(together[:1], alone, "output of a sample in a batch against the sample alone,", 1e-5)
    expect_close(beside[:1], alone, "output of a sample beside large ones against the sample alone,", 1e-5)


@promise("history-independence")
def history_independence(subject: Subject) -> None:
    """In eval an output does not depend on what was called before."""
    variant = subject.build()
    inputs = subject.inputs(21)
    with torch.no_grad():
        first = inputs(variant)
        for length, scale in ((34, 10.0), (3, 0.1)):
            subject.inputs(length, seed=5, scale=scale)(variant)
        subject.inputs(21)
        subject.note(case="the same input before and after calls with others")
        expect_same(inputs(variant), first, "output")


@promise("deterministic-eval")
def deterministic_eval(subject: Subject) -> None:
    """In eval the same input gives the same output whatever the global random state, which stays as it was."""
    variant = subject.build()
    inputs = subject.inputs(21)
    outputs = []
    with torch.no_grad():
        for seed in (11, 12):
            torch.manual_seed(seed)
            before, python_before = torch.get_rng_state(), random.getstate()
            outputs.append(inputs(variant))
            expect(torch.equal(torch.get_rng_state(), before), "an eval forward moves torch's global random state")
            expect(random.getstate() == python_before, "an eval forward moves Python's global random state")
    expect_same(outputs[1], outputs[0], "output under another global seed")


@promise("eval-keeps-state")
def eval_keeps_state(subject: Subject) -> None:
    """An eval forward and backward changes no parameter and no buffer, and adds none."""
    variant = subject.build()
    before = {name: tensor.clone() for name, tensor in variant.state_dict().items()}
    buffers = {name: tensor.clone() for name, tensor in variant.named_buffers()}
    for length in (21, 34):
        subject.inputs(length).leaves()(variant).sum().backward()
    for kind, old, new in (
        ("state dict", before, variant.state_dict()),
        ("buffers", buffers, dict(variant.named_buffers())),
    ):
        expect(set(old) == set(new), f"{kind}: eval adds or removes {sorted(set(old) ^ set(new))}")
        for name, tensor in old.items():
            expect_same(new[name], tensor, f"{kind}: {name} after eval")


@promise("inputs-untouched")
def inputs_untouched(subject: Subject) -> None:
    """A call changes none of its inputs in place, in training or in eval."""
    for train in (False, True):
        variant = subject.build(train=train)
        for mask in subject.masks(2, 21):
            inputs = subject.inputs(21).masked(mask)
            copies = {name: tensor.clone() for name, tensor in inputs.tensors.items()}
            with torch.no_grad():
                inputs(variant)
            for name, tensor in copies.items():
                expect_same(inputs.tensors[name], tensor, f"input {name} after the call")
