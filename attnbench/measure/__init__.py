"""Measuring one variant at one length: one file per quantity, each a function from a Workload to a Measurement.

Names load lazily (`pattern` from its own module alone), so that describing a workload does not import what measures it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.measure.build import build
    from attnbench.measure.compilation import measure_compile
    from attnbench.measure.machine import environment, pin_threads, usable_cores
    from attnbench.measure.memory import measure_memory, measure_resident
    from attnbench.measure.operations import measure_operations
    from attnbench.measure.rate import measure_floor, measure_rate
    from attnbench.measure.recipe import Recipe
    from attnbench.measure.speed import measure_speed
    from attnbench.measure.state import measure_state
    from attnbench.measure.training import Training, train
    from attnbench.measure.workload import Measurement, Workload, refusals

_HOMES = {
    "build": ("build",),
    "compilation": ("measure_compile",),
    "machine": ("environment", "pin_threads", "usable_cores"),
    "memory": ("measure_memory", "measure_resident"),
    "operations": ("measure_operations",),
    "rate": ("measure_floor", "measure_rate"),
    "recipe": ("Recipe",),
    "speed": ("measure_speed",),
    "state": ("measure_state",),
    "training": ("Training", "train"),
    "workload": ("Measurement", "Workload", "refusals"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Measurement",
    "Recipe",
    "Training",
    "Workload",
    "build",
    "environment",
    "measure_compile",
    "measure_floor",
    "measure_memory",
    "measure_operations",
    "measure_rate",
    "measure_resident",
    "measure_speed",
    "measure_state",
    "pin_threads",
    "refusals",
    "train",
    "usable_cores",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'attnbench.measure' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"attnbench.measure.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
