"""Measuring one variant at one length: one file per quantity, each a function from a Workload to a Measurement.

Names load lazily (`pattern` from its own module alone), so that describing a workload does not import what measures it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnbench._lazy import lazy

if TYPE_CHECKING:
    from attnbench.measure.bench import build
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
    "attnbench.measure.bench": ("build",),
    "attnbench.measure.compilation": ("measure_compile",),
    "attnbench.measure.machine": ("environment", "pin_threads", "usable_cores"),
    "attnbench.measure.memory": ("measure_memory", "measure_resident"),
    "attnbench.measure.operations": ("measure_operations",),
    "attnbench.measure.rate": ("measure_floor", "measure_rate"),
    "attnbench.measure.recipe": ("Recipe",),
    "attnbench.measure.speed": ("measure_speed",),
    "attnbench.measure.state": ("measure_state",),
    "attnbench.measure.training": ("Training", "train"),
    "attnbench.measure.workload": ("Measurement", "Workload", "refusals"),
}

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

__getattr__ = lazy(__name__, _HOMES)


def __dir__() -> list[str]:
    return __all__
