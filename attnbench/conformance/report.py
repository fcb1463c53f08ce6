"""What a run of the kit found, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Report", "Result", "Status"]

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Result:
    """One property of one variant in one direction.

    reason: the discrepancy of a failure, or why it was skipped; empty where passed.
    settings: the input of a failure: options, shapes, dtype, mask, seeds.
    seconds: what the check took.
    """

    property: str
    status: Status
    causal: bool
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        plain = {name: _plain(value) for name, value in self.settings.items()}
        return {
            "property": self.property,
            "status": self.status,
            "causal": self.causal,
            "reason": self.reason,
            "settings": plain,
            "seconds": round(self.seconds, 4),
        }

    def __str__(self) -> str:
        direction = "causal" if self.causal else "bidirectional"
        shown = ", ".join(f"{name}={value}" for name, value in self.settings.items())
        return f"{self.property} ({direction}): {self.reason}" + (f" [{shown}]" if shown else "")


@dataclass(frozen=True)
class Report:
    """All results for one variant under one set of options."""

    variant: str
    options: Mapping[str, Any]
    results: list[Result]

    @property
    def ok(self) -> bool:
        return not self.failures

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.status == "failed"]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headers and rows, one row a property and one column a direction, to be printed within 80 columns.

        Reasons are left to the results: they are sentences.
        """
        directions = sorted({result.causal for result in self.results})
        headers = ["property", *("causal" if causal else "bidirectional" for causal in directions)]
        found = {(result.property, result.causal): result.status for result in self.results}
        names = dict.fromkeys(result.property for result in self.results)
        return headers, [[name, *(found.get((name, causal), "") for causal in directions)] for name in names]

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "variant": self.variant,
            "options": {name: _plain(value) for name, value in self.options.items()},
            "ok": self.ok,
            "results": [result.as_dict() for result in self.results],
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    # A NaN is no JSON.
    known = (
        isinstance(value, (str, int, bool)) or value is None or (isinstance(value, float) and abs(value) < float("inf"))
    )
    return value if known else str(value)
