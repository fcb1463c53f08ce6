"""From a cell to a job: JSON-ready data that a worker on any machine can measure without the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnbench.sweep.cells import Cell
from attnbench.sweep.planner import workload_of
from attnbench.sweep.spec import Spec

__all__ = ["job"]

GIGABYTE = 10**9
# What the gate checks depends on the kind of quantity and of mode, not on each of them.
GATED_AS = {"accuracy": "accuracy", "tuning": "accuracy"}
GATED_MODES = {"train_step": "backward"}


def job(
    spec: Spec,
    cell: Cell,
    *,
    session: str,
    round_: int,
    threads: int,
    checkpoints: Path,
    learning_rate: float | None = None,
) -> dict[str, Any]:
    """The job of a cell in one round.

    columns: the record's columns that are known beforehand. definition: what the ids of further records are hashed from.
    target, payload: the call that measures. gate: the call's payload that must pass first, or null.
    limits, gate_limits: what each may take.
    """
    common = {"module": cell.module, "threads": threads, "memory": int(spec.limits.memory_gb * GIGABYTE)}
    if cell.quantity == "accuracy":
        target, payload = "train", _training(cell, learning_rate) | {"checkpoint": str(checkpoints / f"{cell.id}.pt")}
    elif cell.quantity == "tuning":
        target, payload = "tune", _training(cell, None) | {"learning_rates": cell.definition["learning_rates"]}
    elif cell.quantity == "baseline":
        target, payload = (
            "baselines",
            {"task": cell.definition["task_name"], "options": cell.definition["task_options"]},
        )
    elif cell.quantity == "rate":
        target, payload = "rate", {key: cell.definition[key] for key in ("device", "dtype")}
    else:
        workload = workload_of(cell.definition).as_dict()
        payload = {"quantity": cell.quantity, "workload": workload, "sample_seconds": spec.sample_seconds}
        target = "measure"
    return {
        "name": cell.name,
        "definition": cell.definition,
        "columns": cell.columns | {"session": session, "round": round_},
        "target": f"attnbench.sweep.work:{target}",
        "payload": common | payload,
        "gate": _gate(spec, cell, common),
        "limits": _limits(spec, cell, threads),
        "gate_limits": _limits(spec, cell, threads) | {"seconds": spec.limits.seconds},
    }


def _training(cell: Cell, learning_rate: float | None) -> dict[str, Any]:
    keys = ("task_options", "variant", "options", "model", "recipe", "seed", "device", "dtype", "causal")
    given = {key: cell.definition[key] for key in keys}
    if learning_rate is not None:
        given["recipe"] = given["recipe"] | {"learning_rate": learning_rate}
    return given | {"task": cell.definition["task_name"], "test_lengths": cell.definition.get("test_lengths", [])}


def _gate(spec: Spec, cell: Cell, common: dict[str, Any]) -> dict[str, Any] | None:
    """The payload of the gate's call, equal for all cells that rely on the same checks."""
    if cell.definition.get("variant") is None:
        return None
    settings = {key: cell.definition[key] for key in ("heads", "head_dim", "causal", "device", "dtype")}
    mode = cell.definition.get("mode") or "train_step"
    settings["mode"] = GATED_MODES.get(mode, mode)
    settings["quantity"] = GATED_AS.get(cell.quantity, "speed")
    settings["length"] = max(spec.lengths, default=1024)
    settings["max_len"] = cell.definition["options"].get("max_len")
    options = {key: value for key, value in cell.definition["options"].items() if key != "max_len"}
    return {**common, "variant": cell.definition["variant"], "options": options, "settings": settings}


def _limits(spec: Spec, cell: Cell, threads: int) -> dict[str, Any]:
    """Time and address space; a limit on the latter would break an accelerator's runtime, which bounds its own allocator."""
    seconds = spec.limits.seconds
    if cell.quantity in ("accuracy", "baseline", "tuning") and spec.accuracy is not None:
        seconds = spec.accuracy.limit_seconds
        if cell.quantity == "tuning":
            seconds *= len(cell.definition["learning_rates"])
    on_cpu = cell.definition.get("device", "cpu") == "cpu"
    memory = int(spec.limits.memory_gb * GIGABYTE) if on_cpu else None
    return {"seconds": seconds, "memory": memory, "threads": threads}
