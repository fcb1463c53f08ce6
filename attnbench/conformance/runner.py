"""Runs the checks: all of them, one at a time under pytest, or the few that a measurement relies on."""

from __future__ import annotations

import time
import traceback
import unittest
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attnbench.conformance.core import CHECKS, Failure, Skip, family
from attnbench.conformance.report import Report, Result, Status
from attnbench.conformance.subject import DTYPES, Subject
from attnbench.contract import Unsupported
from attnbench.errors import UserError, nearest
from attnbench.registry import variant_info

__all__ = ["Case", "cases", "check", "families", "run_check"]


def check(
    name: str,
    options: Mapping[str, Any] | None = None,
    *,
    heads: int = 2,
    head_dim: int = 8,
    causal: bool | None = None,
    dtypes: Sequence[torch.dtype] = DTYPES,
    device: str = "cpu",
    only: Iterable[str] | None = None,
    expected: Mapping[str, str] | None = None,
) -> Report:
    """Checks every promise of the contract on one variant.

    Args:
        name: the registry's name.
        options: over the options that the capabilities name as `small`, which show structure at a few dozen tokens.
        causal: one direction; None: every direction that the variant declares.
        only: names of properties or of families; None: all.
        expected: properties known to fail, with the reason. Such a failure counts as skipped; a pass as a failure.

    Raises:
        UserError: the variant, an option or a property is unknown, or the direction is not declared.
    """
    names = _selected(only)
    expected = dict(expected or {})
    _selected(expected)
    subjects = [
        make_subject(name, options, causal=direction, heads=heads, head_dim=head_dim, dtypes=dtypes, device=device)
        for direction in directions(name, options, causal)
    ]
    results = [
        _against_expectation(run_check(prop, subject), expected.get(prop)) for prop in names for subject in subjects
    ]
    return Report(name, subjects[0].options, results)


def directions(name: str, options: Mapping[str, Any] | None = None, causal: bool | None = None) -> list[bool]:
    """The directions to check; raises Unsupported where the one asked for, or each, is refused."""
    found, reasons = [], []
    for direction in (False, True) if causal is None else (causal,):
        supports = variant_info(name, **(options or {}), causal=direction).supports
        refusals = supports.refusals(name, causal=direction, max_len=1)
        found += [] if refusals else [direction]
        reasons += refusals
    if not found:
        raise Unsupported(reasons)
    return found


def make_subject(name: str, options: Mapping[str, Any] | None, *, causal: bool, **settings: Any) -> Subject:
    """The variant under its `small` options, overridden by `options`."""
    small = variant_info(name, **(options or {}), causal=causal).supports.small
    return Subject(name, {**small, **(options or {})}, causal=causal, **settings)


def run_check(prop: str, subject: Subject) -> Result:
    """Runs one check on one subject. Whatever it raises is a failure of that property, with type, message and place."""
    subject.settings = {}
    status: Status = "passed"
    reason = ""
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        try:
            CHECKS[prop](subject)
        except Skip as skip:
            status, reason = "skipped", str(skip)
        except Failure as failure:
            status, reason = "failed", str(failure)
        except Exception as error:  # noqa: BLE001 - a variant may raise anything, and each is a promise not kept
            status, reason = "failed", _described(error)
    settings = dict(subject.settings) if status == "failed" else {}
    return Result(prop, status, subject.causal, reason, settings, time.perf_counter() - began)


def _described(error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]} [{place.filename}:{place.lineno}]"


def _against_expectation(result: Result, reason: str | None) -> Result:
    if reason is None or result.status == "skipped":
        return result
    if result.status == "failed":
        return Result(result.property, "skipped", result.causal, f"expected to fail: {reason} ({result.reason})")
    return Result(
        result.property, "failed", result.causal, f"expected to fail ({reason}), but passes: expect it no longer"
    )


def families() -> dict[str, list[str]]:
    """Names of the checks by family."""
    found: dict[str, list[str]] = {}
    for name in CHECKS:
        found.setdefault(family(name), []).append(name)
    return found


def _selected(only: Iterable[str] | None) -> list[str]:
    if only is None:
        return list(CHECKS)
    by_family = families()
    selected: list[str] = []
    for name in only:
        if name not in CHECKS and name not in by_family:
            valid = [*CHECKS, *by_family]
            raise UserError(f"unknown property {name!r}{nearest(name, valid)}; valid properties: {', '.join(CHECKS)}")
        selected += by_family.get(name, [name])
    return list(dict.fromkeys(selected))


@dataclass(frozen=True)
class Case:
    """One property of one variant as a test: call it."""

    variant: str
    prop: str
    run: Callable[[], list[Result]]

    @property
    def __name__(self) -> str:  # pytest's id
        return f"{self.variant}-{self.prop}"

    def __call__(self) -> None:
        """Raises AssertionError with every discrepancy, or SkipTest where nothing of it is declared."""
        results = self.run()
        failed = [str(result) for result in results if result.status == "failed"]
        if failed:
            raise AssertionError("\n".join(f"{self.variant}: {line}" for line in failed))
        if all(result.status == "skipped" for result in results):
            raise unittest.SkipTest("; ".join(sorted({result.reason for result in results})))


def cases(
    name: str, options: Mapping[str, Any] | None = None, *, only: Iterable[str] | None = None, **settings: Any
) -> list[Case]:
    """The kit as pytest parameters, one property each; `settings` are those of `check`.

    @pytest.mark.parametrize("case", attnbench.conformance.cases("mine"))
    def test_contract(case):
        case()
    """

    def case(prop: str) -> Case:
        return Case(name, prop, lambda: check(name, options, only=[prop], **settings).results)

    return [case(prop) for prop in _selected(only)]
