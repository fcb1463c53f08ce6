"""The gate: the promises that one measurement relies on, checked in well under a second before it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from attnbench.conformance.runner import run_check
from attnbench.conformance.subject import Subject

__all__ = ["gate", "relied_on"]

SHORT, LONG = 33, 300  # the longer passes the windows and blocks that variants have by default


def gate(
    variant: str,
    options: Mapping[str, Any],
    *,
    heads: int,
    head_dim: int,
    max_len: int | None,
    causal: bool,
    device: str,
    dtype: str,
    quantity: str,
    mode: str,
    length: int,
) -> list[str]:
    """Checks the variant under exactly these settings, at lengths of at most `length` and a few hundred.

    Returns a line "property: discrepancy" for each promise not kept; an empty list lets the measurement go ahead.

    Raises:
        UserError: the variant or an option is unknown.
    """
    longest = max(1, min(length, LONG, max_len or LONG))
    subject = Subject(
        variant,
        options,
        causal=causal,
        heads=heads,
        head_dim=head_dim,
        device=device,
        dtypes=[getattr(torch, dtype)],
        max_len=max_len or length,
        lengths=sorted({min(SHORT, longest), longest}),
    )
    results = [run_check(name, subject) for name in relied_on(subject, quantity=quantity, mode=mode)]
    return [f"{result.property}: {result.reason}" for result in results if result.status == "failed"]


def relied_on(subject: Subject, *, quantity: str, mode: str) -> list[str]:
    """The properties that a measurement of this quantity in this mode relies on."""
    names = ["any-length", "reference-forward", "dtypes", "deterministic-eval"]
    if subject.causal:
        names.append("strict-causality")
    if mode in ("backward", "train_step") or quantity in ("accuracy", "curve"):
        names.append("reference-gradient")
    if quantity in ("accuracy", "curve"):
        names += ["batch-independence", "state-dict", "padding-content"]
        names += ["strict-causality-masked"] if subject.causal else []
    if mode == "decode" or quantity == "state":
        names.append("decoding-steps")
    if subject.supports.condense:
        names.append("condensing")
    if quantity in ("speed", "memory", "operations", "resident"):
        names.append("no-dense-tensor")
    return names
