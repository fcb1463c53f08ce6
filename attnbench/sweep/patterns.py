"""Who sees whom, drawn once for every label of a run: `patterns.npz`, from which the report makes its gallery."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.registry import variant_info
from attnbench.sweep.cells import Plan
from attnbench.sweep.isolation import Isolation
from attnbench.sweep.spec import Entry

__all__ = ["LENGTH", "draw_patterns"]

FILE = "patterns.npz"
LENGTH = 64
LIMITS: dict[str, Any] = {"seconds": 60.0, "memory": 8 * 10**9, "threads": 1}


def draw_patterns(plan: Plan, path: Path, isolation: Isolation) -> None:
    """Writes the patterns of a run that has none: an (n, n) array under each label, and under "LABEL causal".

    Options that show a structure at this length stand in for what an entry leaves open. What cannot be drawn is left out; why,
    the records of its cells say.
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


def _payloads(entry: Entry) -> list[tuple[str, dict[str, Any]]]:
    info = variant_info(entry.name, **entry.options)
    common = {
        "module": info.cls.__module__,
        "variant": entry.name,
        "length": LENGTH,
        "options": {**info.supports.small, **{key: value for key, value in entry.options.items() if key != "max_len"}},
    }
    forms = [("", False)] * info.supports.bidirectional + [(" causal", True)] * info.supports.causal
    return [(suffix, common | {"causal": causal}) for suffix, causal in forms]
