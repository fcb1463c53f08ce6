"""What a check is: a function over a Subject that returns, raises Skip, or raises anything else, which is a failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from attnbench.conformance.subject import Subject

__all__ = [
    "CHECKS",
    "Check",
    "Failure",
    "Skip",
    "expect",
    "expect_close",
    "expect_finite",
    "expect_same",
    "family",
    "promise",
    "require",
]

Check = Callable[["Subject"], None]
F = TypeVar("F", bound=Check)

CHECKS: dict[str, Check] = {}


class Failure(AssertionError):
    """A promise that is not kept; the message is the discrepancy."""


class Skip(Exception):
    """The variant does not declare what the check is about; the message says so."""


def promise(name: str) -> Callable[[F], F]:
    """Decorator: adds a check under the name of the property it checks. Its docstring states the promise."""

    def decorate(function: F) -> F:
        CHECKS[name] = function
        return function

    return decorate


def family(name: str) -> str:
    """The family of a check: the module that holds it."""
    return CHECKS[name].__module__.rpartition(".")[2]


def require(declared: bool, otherwise: str) -> None:
    """Skips the check, with the reason, where the variant does not declare what it is about."""
    if not declared:
        raise Skip(otherwise)


def expect(kept: bool, discrepancy: str) -> None:
    if not kept:
        raise Failure(discrepancy)


def expect_finite(tensor: Tensor, what: str) -> None:
    wrong = ~tensor.isfinite()
    if wrong.any():
        index = tuple(wrong.nonzero()[0].tolist())
        raise Failure(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} values are not finite, first {tensor[index].item()} at {index}"
        )


def expect_close(actual: Tensor, expected: Tensor, what: str, tolerance: float) -> None:
    """Equality up to `tolerance` times the largest expected magnitude (or 1, where that is smaller)."""
    _expect_alike(actual, expected, what)
    if expected.numel() == 0:
        return
    expect_finite(actual, what)
    actual, expected = actual.detach().double(), expected.detach().double()
    difference = (actual - expected).abs()
    allowed = tolerance * max(1.0, expected.abs().max().item())
    if not difference.max().item() <= allowed:  # a NaN is never within
        raise Failure(f"{what} differs by {_worst(actual, expected, difference)}; allowed {allowed:.1e}")


def expect_same(actual: Tensor, expected: Tensor, what: str) -> None:
    """Equality to the bit."""
    _expect_alike(actual, expected, what)
    if not torch.equal(actual, expected):
        difference = (actual.double() - expected.double()).abs().nan_to_num(nan=torch.inf)
        raise Failure(f"{what} differs by {_worst(actual, expected, difference)}; must be equal to the bit")


def _expect_alike(actual: Tensor, expected: Tensor, what: str) -> None:
    expect(actual.shape == expected.shape, f"{what} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")


def _worst(actual: Tensor, expected: Tensor, difference: Tensor) -> str:
    index = torch.unravel_index(difference.argmax(), difference.shape)
    place = tuple(int(axis) for axis in index)
    values = f"{actual[index].item():.6g} against {expected[index].item():.6g}"
    return f"{difference.max().item():.3g} at {place} ({values})"
