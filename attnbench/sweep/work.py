"""What the process of a cell does: each function takes a JSON-ready payload and returns an outcome, its records in `rows`.

A payload's `module` is imported first, so that a variant outside the entry points is known here too.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["baselines", "check", "draw", "measure", "rate", "train", "tune"]


def measure(payload: Mapping[str, Any]) -> dict[str, Any]:
    """One quantity of one workload."""
    from attnbench import measure as measures

    _prepare(payload)
    workload = measures.Workload.from_dict(payload["workload"])
    _limit_accelerator(workload.device, payload["memory"])
    if payload["quantity"] == "compile":
        importlib.import_module("torch._inductor.compile_fx")  # or its import would count as compilation
    timing = {"seconds": payload["sample_seconds"]} if payload["quantity"] in ("speed", "floor") else {}
    with measures.pin_threads(payload["threads"]) as threads:
        measured = getattr(measures, f"measure_{payload['quantity']}")(workload, **timing)
    return _ok([_row(measured)], threads)


def rate(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The machine's matmul rate."""
    from attnbench.measure import measure_rate, pin_threads

    with pin_threads(payload["threads"]) as threads:
        return _ok([_row(measure_rate(payload["device"], payload["dtype"]))], threads)


def check(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The gate: `incorrect`, with the promises that were not kept, or ok."""
    from attnbench.conformance import gate
    from attnbench.measure import pin_threads

    _prepare(payload)
    with pin_threads(payload["threads"]):
        broken = gate(payload["variant"], payload["options"], **payload["settings"])
    return {"status": "incorrect", "reason": "; ".join(broken)} if broken else {"status": "ok"}


def draw(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Who sees whom, as rows of numbers."""
    from attnbench.measure.pattern import pattern

    _prepare(payload)
    seen = pattern(payload["variant"], payload["length"], causal=payload["causal"], options=payload["options"])
    return {"status": "ok", "pattern": seen.tolist()}


def baselines(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A task's baselines, one row each, labelled by their names; last the constant answer, which every task has."""
    from attnbench.measure import pin_threads
    from attnbench.tasks import IGNORE, create_task

    with pin_threads(payload["threads"]) as threads:
        task = create_task(payload["task"], **payload["options"])
        values = task.baselines()
        facts = _task_facts(task) | {"total": int((task.batch("test").targets != IGNORE).sum())}
    common = {"length": task.length, "metric": task.metric, "unit": task.unit, "details": facts}
    names = [*sorted(values.keys() - {"constant"}), "constant"]
    rows = [{"label": name, "value": float(values[name]), **common} for name in names]
    return _ok(rows, threads)


def train(payload: Mapping[str, Any]) -> dict[str, Any]:
    """One training: its learning curve, and its score on the test split."""
    from attnbench.measure import Recipe, pin_threads
    from attnbench.measure import train as run_training
    from attnbench.tasks import create_task

    _prepare(payload)
    _limit_accelerator(payload["device"], payload["memory"])
    checkpoint = Path(payload["checkpoint"]) if payload.get("checkpoint") else None
    if checkpoint is not None:
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
    with pin_threads(payload["threads"]) as threads:
        task = create_task(payload["task"], **payload["task_options"])
        training = run_training(
            payload["task"],
            payload["task_options"],
            payload["variant"],
            payload["options"],
            payload["model"],
            Recipe.of(payload["recipe"]),
            payload["seed"],
            device=payload["device"],
            dtype=payload["dtype"],
            causal=payload["causal"],
            test_lengths=payload["test_lengths"],
            checkpoint=checkpoint,
        )
    common = {"length": task.length, "metric": training.metric, "unit": training.unit}
    curve = {"quantity": "curve", **common, "details": {"curve": training.curve}}
    facts = _task_facts(task) | _training_facts(training) | {"learning_rate": payload["recipe"]["learning_rate"]}
    scored = {**common, "details": facts}
    if training.diverged_at is not None:
        reason = f"diverged: the loss is no number at step {training.diverged_at}"
        return _ok([curve, {**scored, "status": "error", "reason": reason}], threads)
    return _ok([curve, {**scored, "value": training.value}], threads)


def tune(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The choice of a learning rate by validation; the grid and what came of each rate are in the details."""
    from attnbench.measure import Recipe, pin_threads
    from attnbench.measure.training import Setup, choose_rate

    _prepare(payload)
    _limit_accelerator(payload["device"], payload["memory"])
    keys = ("task", "task_options", "variant", "options", "model", "seed", "device", "dtype", "causal", "test_lengths")
    setup = Setup(**{key: payload[key] for key in keys}, recipe=Recipe.of(payload["recipe"]))
    with pin_threads(payload["threads"]) as threads:
        choice = choose_rate(payload["learning_rates"], setup)
    return _ok([{"value": choice.rate, "unit": "1", "details": {"grid": choice.grid}}], threads)


def _prepare(payload: Mapping[str, Any]) -> None:
    if payload.get("module"):
        importlib.import_module(payload["module"])


def _limit_accelerator(device: str, memory: int) -> None:
    """Bounds the allocator of an accelerator, as the address space is bounded on a CPU."""
    import torch

    kind = torch.device(device)
    if kind.type == "cuda":
        total = torch.cuda.get_device_properties(kind).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total), kind)
    elif kind.type == "mps":
        torch.mps.set_per_process_memory_fraction(min(1.0, memory / torch.mps.recommended_max_memory()))


def _row(measured: Any) -> dict[str, Any]:
    row = measured.as_dict()
    return row | {key: row["details"].pop(key) for key in ("length", "batch") if key in row["details"]}


def _task_facts(task: Any) -> dict[str, Any]:
    return {"higher_is_better": task.higher_is_better, "data_hash": task.data_hash()}


def _training_facts(training: Any) -> dict[str, Any]:
    """What a training cost, and its score by what makes an item hard."""
    test = dict(training.test or {})
    return {
        **training.details["spent"],
        "parameters": training.parameters,
        "parameters_by_kind": training.details["parameters"],
        "examples": training.details["examples"],
        "by_slice": test.pop("by_slice", {}),
        "test": test,
        "validation": training.validation,
        "best_step": training.best_step,
        "diverged_at": training.diverged_at,
    }


def _ok(rows: list[dict[str, Any]], threads: int) -> dict[str, Any]:
    return {"status": "ok", "rows": rows, "threads": threads}
