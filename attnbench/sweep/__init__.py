"""From a spec to records: planned, measured cell by cell in processes of their own, and resumable at any moment.

Names load lazily: records and specs can be read on a machine without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench._lazy import lazy

if TYPE_CHECKING:
    from attnbench.sweep.cells import Cell, Group, Plan
    from attnbench.sweep.planner import plan
    from attnbench.sweep.runner import Summary, run
    from attnbench.sweep.spec import Spec, experiment_path, list_experiments, load_spec, parse_spec

_HOMES = {
    "attnbench.sweep.cells": ("Cell", "Group", "Plan"),
    "attnbench.sweep.planner": ("plan",),
    "attnbench.sweep.runner": ("Summary", "run"),
    "attnbench.sweep.spec": ("Spec", "experiment_path", "list_experiments", "load_spec", "parse_spec"),
}

__all__ = [
    "Cell",
    "Group",
    "Plan",
    "Spec",
    "Summary",
    "experiment_path",
    "list_experiments",
    "load_spec",
    "parse_spec",
    "plan",
    "run",
]

__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
