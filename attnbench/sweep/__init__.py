"""From a spec to records: planned, measured cell by cell in processes of their own, and resumable at any moment.

Names load lazily: records and specs can be read on a machine without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.sweep.cells import Cell, Group, Plan
    from attnbench.sweep.planner import plan
    from attnbench.sweep.runner import Summary, run
    from attnbench.sweep.spec import Spec, experiment_path, list_experiments, load_spec, parse_spec

_HOMES = {
    "cells": ("Cell", "Group", "Plan"),
    "planner": ("plan",),
    "runner": ("Summary", "run"),
    "spec": ("Spec", "experiment_path", "list_experiments", "load_spec", "parse_spec"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'attnbench.sweep' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"attnbench.sweep.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
