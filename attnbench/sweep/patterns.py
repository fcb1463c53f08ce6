"""Who sees whom, drawn once for every label of a run: `patterns.npz`, from which the report makes its gallery."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.capabilities import Supports
from attnbench.registry import variant_info
from attnbench.sweep.cells import Plan
from attnbench.sweep.isolation import Isolation
from attnbench.sweep.spec import Entry

__all__ = ["LENGTH", "draw_patterns", "forms", "structural"]

FILE = "patterns.npz"
LENGTH = 64
LIMITS: dict[str, Any] = {"seconds": 60.0, "memory": 8 * 10**9, "threads": 1}


def draw_patterns(plan: Plan, path: Path, isolation: Isolation) -> None:
    """Writes the patterns of a run that has none: an (n, n) array under each label, and under "LABEL causal".

    What cannot be drawn is left out; why, the records of its cells say.
    """
    if (path / FILE).exists():
        return
    drawn = {
        entry.label + suffix: np.array(outcome["pattern"])
        for entry in plan.spec.variants
        for suffix, payload in _payloads(entry)
        if (outcome := isolation.call("attnbench.sweep.work:draw", payload, **LIMITS))["status"] == "ok"
    }
    part = path / f".{FILE}.part"
    with open(part, "wb") as file:
        np.savez_compressed(file, **drawn)  # type: ignore[arg-type]
    os.replace(part, path / FILE)


def forms(supports: Supports) -> list[tuple[str, bool]]:
    """(what a label's pattern is called after it, causal) of every form that a variant has."""
    return [("", False)] * supports.bidirectional + [(" causal", True)] * supports.causal


def structural(supports: Supports, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a pattern: at a few dozen positions a default window or block covers everything, so that what is not given is
    small enough to show the structure."""
    return {**supports.small, **given}


def _payloads(entry: Entry) -> list[tuple[str, dict[str, Any]]]:
    info = variant_info(entry.name, **entry.options)
    given = {key: value for key, value in entry.options.items() if key != "max_len"}
    common = {
        "module": info.cls.__module__,
        "variant": entry.name,
        "length": LENGTH,
        "options": structural(info.supports, given),
    }
    return [(suffix, common | {"causal": causal}) for suffix, causal in forms(info.supports)]
