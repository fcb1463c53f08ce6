"""The oracle: the fast path equals the variant's own plain statement, and full attention where it must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench.conformance.core import expect, expect_close, promise, require
from attnbench.conformance.subject import Inputs, Subject
from attnbench.contract import Variant

LENGTHS = (1, 9, 34)


def states_reference(variant: Variant) -> bool:
    cls = type(variant)
    return cls.reference is not Variant.reference or cls.dense_weights is not Variant.dense_weights


@promise("reference-forward")
def reference_forward(subject: Subject) -> None:
    """The output equals the variant's own `reference`, whatever the mask."""
    variant = subject.build(dtype=subject.exact)
    require(states_reference(variant), "states no reference")
    for length in subject.oracle_lengths:
        inputs = subject.inputs(length, dtype=subject.exact)
        for mask in subject.masks(2, length):
            masked = inputs.masked(mask)
            with torch.no_grad():
                actual, expected = masked(variant), masked(variant.reference)
            actual, expected = _real(subject, mask, actual, expected)
            expect_close(actual, expected, "output against reference", subject.tolerance(subject.exact))


@promise("reference-gradient")
def reference_gradient(subject: Subject) -> None:
    """The gradients of the inputs and of the parameters equal those of `reference`."""
    variant = subject.build(dtype=subject.exact)
    require(states_reference(variant), "states no reference")
    for length in LENGTHS:
        inputs = subject.inputs(length, batch=2, dtype=subject.exact)
        for mask in subject.masks(2, length):
            fast = run_and_differentiate(variant, inputs.masked(mask), variant)
            slow = run_and_differentiate(variant, inputs.masked(mask), variant.reference)
            for name, expected in slow.items():
                expect_close(fast[name], expected, name, subject.tolerance(subject.exact))


def run_and_differentiate(variant: Variant, inputs: Inputs, function: Any) -> dict[str, Tensor]:
    """The output, and the gradients of a fixed random functional of it at real tokens by the name of input or parameter."""
    inputs = inputs.leaves()
    out = function(inputs.q, inputs.k, inputs.v, key_mask=inputs.key_mask, **inputs.streams)
    generator = torch.Generator().manual_seed(2)
    weights = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    if inputs.key_mask is not None and out.shape[2] == inputs.key_mask.shape[1]:
        weights = weights * inputs.key_mask[:, None, :, None]  # what a padded query gives is its own affair
    wanted = inputs.tensors | dict(variant.named_parameters())
    found = torch.autograd.grad((out * weights).sum(), list(wanted.values()), allow_unused=True)
    results = {
        f"gradient of {name}": torch.zeros_like(tensor) if gradient is None else gradient
        for (name, tensor), gradient in zip(wanted.items(), found, strict=True)
    }
    return {"output": out.detach() * (weights != 0)} | results


@promise("dense-weights")
def dense_weights(subject: Subject) -> None:
    """`dense_weights` is the matrix that maps v to the output, and its support is the visible set."""
    require(subject.supports.linear_in_v, "not linear in v")
    length = 19
    variant = subject.build(dtype=subject.exact)
    require(states_reference(variant), "states no reference")
    for mask in subject.masks(1, length):
        inputs = subject.inputs(length, batch=1, dtype=subject.exact)
        with torch.no_grad():
            q, k, _, key_mask, streams = variant._prepared(inputs.q, inputs.k, inputs.v, mask, dict(inputs.streams))
            stated = variant.dense_weights(q, inputs.v if k is None else k, key_mask=key_mask, **streams)
            measured = _impulses(inputs.masked(mask), length)(variant)[..., 0]  # sample j of the batch: v is 1 at key j
        measured = measured.permute(1, 2, 0)[None]
        expect(
            stated.shape == measured.shape,
            f"dense_weights has shape {tuple(stated.shape)}, expected (batch, heads, n_q, n_k) = {tuple(measured.shape)}",
        )
        stated, measured = _real(subject, mask, stated, measured)
        if mask is not None:
            stated = stated * mask[:, None, None, :]
        expect_close(
            measured, stated, "output at impulses of v against dense_weights", subject.tolerance(subject.exact)
        )
        odd = (measured.abs() > 1e-9) != (stated.abs() > 1e-9)
        expect(not odd.any(), f"visible set differs from the support of dense_weights at {odd.nonzero()[:4].tolist()}")


def _impulses(inputs: Inputs, length: int) -> Inputs:
    repeated = inputs.map(lambda tensor: tensor.expand(length, *tensor.shape[1:]))
    impulse = torch.eye(length, dtype=inputs.v.dtype, device=inputs.v.device)[:, None, :, None].expand_as(repeated.v)
    mask = None if inputs.key_mask is None else inputs.key_mask.expand(length, -1)
    return repeated.map(lambda _: impulse, names=["v"]).masked(mask)


@promise("exact-when")
def exact_when(subject: Subject) -> None:
    """Under the options of `exact_when` the variant equals full attention."""
    exact = subject.supports.exact_when
    require(exact is not None, "declares no options under which it equals full attention")
    assert exact is not None
    for length in (7, 24):
        options: dict[str, Any] = {name: length if value == "n" else value for name, value in exact.items()}
        options |= {"max_len": length} if subject.supports.max_len else {}
        variant = subject.build(dtype=subject.exact, **options)
        for mask in subject.masks(2, length):
            inputs = subject.inputs(length, dtype=subject.exact).masked(mask)
            with torch.no_grad():
                actual, expected = inputs(variant), full_attention(inputs, subject.causal)
            actual, expected = _real(subject, mask, actual, expected)
            expect_close(actual, expected, "output against full attention", subject.tolerance(subject.exact))


def full_attention(inputs: Inputs, causal: bool) -> Tensor:
    """softmax(q k^T / sqrt(head_dim)) v over the visible keys, zero where there are none."""
    assert inputs.q is not None
    assert inputs.k is not None
    scores = inputs.q @ inputs.k.transpose(-1, -2) * inputs.q.shape[-1] ** -0.5
    visible = torch.ones_like(scores, dtype=torch.bool)
    if causal:
        visible = visible.tril(scores.shape[-1] - scores.shape[-2])
    if inputs.key_mask is not None:
        visible = visible & inputs.key_mask[:, None, None, :]
    weights = scores.masked_fill(~visible, -torch.inf).softmax(dim=-1)
    return torch.where(visible.any(dim=-1, keepdim=True), weights, 0) @ inputs.v


@promise("alignment")
def alignment(subject: Subject) -> None:
    """With n_q != n_k the last query is aligned with the last key; a causal query before the first key gets zeros."""
    require(subject.supports.cross, "takes self-attention alone")
    tolerance = subject.tolerance(subject.exact)
    variant = subject.build(dtype=subject.exact, cross=True)
    whole = subject.inputs(8, dtype=subject.exact)
    with torch.no_grad():
        for n_q, n_k in ((1, 8), (3, 8), (5, 2)):
            inputs = subject.inputs(n_q, keys=n_k, dtype=subject.exact)
            out = inputs(variant)
            expect(
                tuple(out.shape) == (*inputs.v.shape[:2], n_q, subject.head_dim), f"output has shape {tuple(out.shape)}"
            )
            if states_reference(variant):
                expect_close(out, inputs(variant.reference), "output against reference", tolerance)
            if subject.causal and n_q < n_k:
                subject.note(case="the last queries of a longer sequence, alone")
                late = replace(whole, **_last_queries(whole, n_q))
                expect_close(late(variant), whole(variant)[:, :, -n_q:], "rows of the last queries", tolerance)
            elif subject.causal:
                early = out[:, :, : n_q - n_k]
                expect_close(early, torch.zeros_like(early), "output of queries before the first key", tolerance)


def _last_queries(whole: Inputs, n_q: int) -> dict[str, Any]:
    streams = {name: stream[:, :, -n_q:] for name, stream in whole.streams.items()}
    return {"q": None if whole.q is None else whole.q[:, :, -n_q:], "streams": streams}


def _real(subject: Subject, mask: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The rows of real queries; where keys may come from elsewhere, a key mask says nothing about queries."""
    if mask is None or subject.supports.cross:
        return tensors
    return tuple(tensor * mask[:, None, :, None] for tensor in tensors)
