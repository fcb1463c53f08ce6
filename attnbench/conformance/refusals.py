"""Refusals: what is not declared is refused with the reason, never silently ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from attnbench.conformance.core import expect, promise, require
from attnbench.conformance.subject import Subject
from attnbench.contract import Unsupported


def refuses(what: str, call: Callable[[], Any], error: type[Exception] = ValueError, mentions: str = "") -> None:
    """Fails unless `call` raises `error` with `mentions` in its message; any other exception passes through."""
    try:
        call()
    except error as refusal:
        expect(mentions in str(refusal), f"{what}: the refusal says {str(refusal)!r} and does not mention {mentions!r}")
    else:
        expect(False, f"{what} is accepted in silence")


@promise("refuses-undeclared")
def refuses_undeclared(subject: Subject) -> None:
    """Causality, either direction, cross-attention, padding, dropout and decoding are refused where not declared."""
    supports = subject.supports
    if subject.supports.refusals(subject.name, causal=not subject.causal, max_len=1):
        refuses(f"causal={not subject.causal}", lambda: subject.build(causal=not subject.causal), Unsupported)
    if not supports.dropout:
        refuses("dropout=0.5", lambda: subject.build(dropout=0.5), Unsupported)
    if supports.max_len:
        refuses("construction without max_len", lambda: subject.build(max_len=None), Unsupported)
    variant = subject.build()
    if not supports.cross:
        refuses("cross=True", lambda: subject.build(cross=True), Unsupported)
    if not supports.cross and {"q", "k"} & set(supports.reads):
        for n_q, n_k in ((1, 8), (3, 8), (5, 2)):
            inputs = subject.inputs(n_q, keys=n_k)
            if inputs.q is not None:
                refuses(f"n_q {n_q} with n_k {n_k}", lambda inputs=inputs: inputs(variant), Unsupported)  # type: ignore[misc]
    inputs = subject.inputs(8)
    if not supports.padding:
        mask = subject.padding(2, 8)
        refuses("a key_mask", lambda: inputs.masked(mask)(variant), Unsupported)
    if not supports.decode:
        refuses("prefill", lambda: variant.prefill(inputs.q, inputs.k, inputs.v, None, **inputs.streams), Unsupported)  # type: ignore[arg-type]


@promise("refuses-unknown-option")
def refuses_unknown_option(subject: Subject) -> None:
    """An option that does not exist is an error that lists the valid ones."""
    refuses("an unknown option", lambda: subject.build(windoww=3), mentions="valid options")


@promise("refuses-other-masks")
def refuses_other_masks(subject: Subject) -> None:
    """A key mask is bool (batch, n_k) and nothing else: uint8, 0/1 floats, other shapes raise and say what is valid."""
    require(subject.supports.padding, "takes no key_mask")
    variant = subject.build()
    inputs = subject.inputs(6, batch=3)
    mask = torch.ones(3, 6, dtype=torch.bool, device=subject.device)
    others: dict[str, Any] = {
        "a uint8 mask": mask.to(torch.uint8),
        "a float mask": mask.float(),
        "a mask (batch, 1, 1, n)": mask[:, None, None],
        "a mask (n,)": mask[0],
        "a mask (batch, n_q, n_k)": mask[:, None].expand(3, 6, 6),
        "a mask of the wrong length": mask[:, :5],
        "a mask of another batch": mask[:2],
        "a list": mask.tolist(),
    }
    for what, other in others.items():
        subject.note(mask=what)
        refuses(what, lambda other=other: inputs.masked(other)(variant), mentions="key_mask")  # type: ignore[misc]


@promise("refuses-misfits")
def refuses_misfits(subject: Subject) -> None:
    """Inputs of the wrong rank, width, head count or dtype, and missing or surplus streams, raise ValueError."""
    variant = subject.build()
    good = subject.inputs(6)
    misfits = {
        "v of rank 3": good.map(lambda tensor: tensor[0], ["v"]),
        "v of another head_dim": good.map(lambda tensor: tensor[..., :-1], ["v"]),
        "v with a head too many": good.map(lambda tensor: torch.cat([tensor, tensor[:, :1]], dim=1), ["v"]),
        "whole numbers": good.map(torch.Tensor.long),
        "length 0": good.map(lambda tensor: tensor[:, :, :0]),
    }
    for what, misfit in misfits.items():
        subject.note(case=what)
        refuses(what, lambda misfit=misfit: misfit(variant))  # type: ignore[misc]
    refuses("a stream that is not declared", lambda: variant(good.q, good.k, good.v, unheard_of=good.v, **good.streams))
    if good.streams:
        refuses("a call without its streams", lambda: variant(good.q, good.k, good.v))


@promise("max-len")
def max_len(subject: Subject) -> None:
    """A sequence longer than max_len is refused with both numbers named, and the next call works."""
    require(subject.supports.max_len, "max_len does not bind")
    assert subject.max_len is not None
    variant = subject.build()
    with torch.no_grad():
        before = subject.inputs(8)(variant)
        too_long = subject.inputs(subject.max_len + 1)
        refuses("a longer sequence", lambda: too_long(variant), mentions=str(subject.max_len + 1))
        refuses("a longer sequence", lambda: too_long(variant), mentions=str(subject.max_len))
        expect(torch.equal(subject.inputs(8)(variant), before), "the next call gives another output")
