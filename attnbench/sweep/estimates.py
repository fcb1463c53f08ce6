"""How long a cell may take, to within an order of magnitude: enough for a plan and a progress bar."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attnbench.capabilities import Supports

__all__ = ["estimate", "estimate_training"]

ISOLATION = 0.15  # seconds that a process of its own costs
CALLS = {"speed": 2, "memory": 3, "resident": 2, "operations": 2, "state": 1, "compile": 20}  # beside the samples
PASSES = {"forward": 1.0, "backward": 2.5, "train_step": 3.5, "decode": 1.0}
RATE = {"cpu": 5e10, "cuda": 2e13, "mps": 1e12}  # floating-point operations a second


def estimate(definition: Mapping[str, Any], supports: Supports, sample_seconds: float) -> float:
    """Seconds of one measurement of a cell: isolation, warm-up calls, and samples."""
    call = _call_seconds(definition, supports)
    sampled = max(sample_seconds, call) if definition["quantity"] in ("speed", "floor") else 0.0
    compiling = 20.0 if definition["quantity"] == "compile" else 0.0
    return ISOLATION + compiling + sampled + CALLS.get(definition["quantity"], 1) * call


def _call_seconds(definition: Mapping[str, Any], supports: Supports) -> float:
    n, width = definition["length"] or 1, definition["heads"] * definition["head_dim"]
    mixing = 4.0 * n**supports.time.exponent * width * (1 if supports.time.exponent > 1 else 64)
    layers = definition["depth"] or 1
    projections = 24.0 * n * width**2 if definition["depth"] else 0.0
    work = definition["batch"] * layers * (mixing + projections) * PASSES[definition["mode"]]
    return 1e-4 + work / _rate(definition["device"])


def estimate_training(model: Mapping[str, Any], recipe: Mapping[str, Any], length: int, device: str) -> float:
    """Seconds of one training by its budget: a pass forward and two back over every token of every step."""
    if recipe.get("seconds"):
        return float(recipe["seconds"])
    dim, depth = model["dim"], model["depth"]
    tokens = recipe.get("tokens") or recipe.get("steps", 1000) * recipe["batch"] * length
    work = recipe.get("operations") or 3.0 * tokens * depth * (24.0 * dim**2 + 4.0 * length * dim)
    return 2.0 + work / _rate(device)


def _rate(device: str) -> float:
    return RATE[device.partition(":")[0]]
