"""Training: dropout, recomputation, copies, and the modes of gradient recording."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnbench.conformance.core import expect, expect_close, expect_same, promise, require
from attnbench.conformance.subject import Inputs, Subject
from attnbench.contract import Variant


@promise("dropout")
def dropout(subject: Subject) -> None:
    """Dropout works in training alone: eval ignores it, training at 0 equals eval, and training with it does not."""
    require(subject.supports.dropout, "has no dropout")
    inputs = subject.inputs(21).masked(subject.padding(2, 21) if subject.supports.padding else None)
    plain, dropping = subject.build(), subject.build(dropout=0.5)
    dropping.load_state_dict(plain.state_dict())
    with torch.no_grad():
        expected = inputs(plain)
        expect_same(inputs(dropping), expected, "output in eval with dropout against without")
        expect_same(inputs(dropping), expected, "output in eval with dropout, a second time,")
        expect_close(inputs(plain.train()), expected, "output in training without dropout against eval", 1e-5)
        torch.manual_seed(4)
        dropped, again = inputs(dropping.train()), inputs(dropping)
        expect(dropped.shape == expected.shape, f"output in training has shape {tuple(dropped.shape)}")
        expect(not torch.equal(dropped, expected), "training with dropout=0.5 drops nothing")
        expect(not torch.equal(dropped, again), "training with dropout=0.5 drops the same each time")


@promise("checkpointing")
def checkpointing(subject: Subject) -> None:
    """Under torch.utils.checkpoint output, gradients and the state after it are those of the plain pass."""
    plain, recomputed = (subject.build(dtype=subject.exact, train=True) for _ in range(2))
    inputs = subject.inputs(21, dtype=subject.exact)
    out, gradients = _pass(plain, inputs, lambda call, *tensors: call(*tensors))
    out_again, gradients_again = _pass(recomputed, inputs, partial(checkpoint, use_reentrant=False))
    expect_close(out_again, out, "output", 1e-6)
    for name, gradient in gradients.items():
        again = gradients_again[name]
        expect((gradient is None) == (again is None), f"gradient of {name} exists on one side only")
        if gradient is not None and again is not None:
            expect_close(again, gradient, f"gradient of {name}", 1e-6)
    for name, tensor in plain.state_dict().items():
        expect_close(recomputed.state_dict()[name], tensor, f"state {name} after the pass", 1e-6)


def _pass(variant: Variant, inputs: Inputs, through: Callable[..., Tensor]) -> tuple[Tensor, dict[str, Tensor | None]]:
    inputs = inputs.leaves()
    torch.manual_seed(6)
    out = through(lambda *_: inputs(variant), *inputs.tensors.values())
    out.square().sum().backward()
    named = {**inputs.tensors, **dict(variant.named_parameters())}
    return out.detach(), {name: tensor.grad for name, tensor in named.items()}


@promise("copies")
def copies(subject: Subject) -> None:
    """A deep copy and a pickled copy, made before or after use, give the same output, and share no memory."""
    variant = subject.build()
    inputs = subject.inputs(21)
    for moment in ("before use", "after use"):
        subject.note(moment=moment)
        duplicates = {"deep copy": copy.deepcopy(variant), "pickled copy": pickle.loads(pickle.dumps(variant))}
        with torch.no_grad():
            expected = inputs(variant)
            for what, duplicate in duplicates.items():
                expect_same(inputs(duplicate), expected, f"output of the {what}")
        mine = {tensor.data_ptr() for tensor in variant.state_dict().values() if tensor.numel()}
        theirs = {tensor.data_ptr() for tensor in duplicates["deep copy"].state_dict().values() if tensor.numel()}
        expect(not mine & theirs, "a deep copy shares memory with the original")


@promise("gradient-modes")
def gradient_modes(subject: Subject) -> None:
    """The output does not depend on whether gradients are recorded, nor on inference mode."""
    variant = subject.build()
    inputs = subject.inputs(21)
    with torch.no_grad():
        quiet = inputs(variant)
    with torch.inference_mode():
        inference = inputs(variant)
    expect_close(inference, quiet, "output in inference mode against no_grad", 1e-5)
    expect_close(inputs.leaves()(variant).detach(), quiet, "output with gradients recorded against no_grad", 1e-5)


def train_steps(variant: torch.nn.Module, inputs: Inputs, steps: int) -> None:
    """A few steps of plain gradient descent, so that parameters and buffers move."""
    variant.train()
    parameters = [parameter for parameter in variant.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(parameters, lr=0.01) if parameters else None
    for _ in range(steps):
        out = inputs.leaves()(variant)
        out.square().mean().backward()
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad()
    variant.eval()
