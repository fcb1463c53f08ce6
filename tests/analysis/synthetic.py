"""Runs with known truths: costs follow stated laws, so exponents, crossovers, ratios and outcomes are known in advance."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from attnbench.sweep.records import COLUMNS, SCHEMA, cell_id

ENVIRONMENT = {
    "processor": "synthetic",
    "cores": 2,
    "threads": 2,
    "torch": "2.13.0",
    "git_commit": "abc",
    "load_average": 0.5,
}
DEFAULTS: dict[str, Any] = {
    "scope": "attention",
    "mode": "forward",
    "causal": False,
    "device": "cpu",
    "dtype": "float32",
    "batch": 1,
    "heads": 4,
    "head_dim": 64,
    "dim": 256,
    "depth": 2,
    "host": "here",
    "threads": 2,
}
UNITS = {"speed": "s", "floor": "s", "compile": "s", "memory": "bytes", "resident": "bytes", "state": "bytes"}
NAMES = [
    *("full", "full-naive", "local", "strided", "global-token", "clustering", "sinkhorn", "linformer", "synthesizer"),
    *(
        "linear",
        "performer",
        "mixed",
        "reformer",
        "nystrom",
        "cosformer",
        "recurrent",
        "convolution",
        "delta",
        "none",
        "uniform",
    ),
]


class Synthetic:
    """Collects records of one run and writes them; `law` is (factor, exponent) of a cost in the length."""

    def __init__(self, seed: int = 0, session: str = "one", baseline: str = "full") -> None:
        self.rng = np.random.default_rng(seed)
        self.session, self.baseline = session, baseline
        self.records: list[dict[str, Any]] = []
        self.environment = dict(ENVIRONMENT)
        self.definition = (
            "label",
            "task",
            "metric",
            "seed",
            "scope",
            "mode",
            "causal",
            "device",
            "dtype",
            "batch",
            "length",
        )

    def add(self, quantity: str, label: str | None, value: float | None = None, **fields: Any) -> dict[str, Any]:
        record: dict[str, Any] = dict.fromkeys(COLUMNS) | DEFAULTS
        record |= {"schema": SCHEMA, "session": self.session, "round": 0, "quantity": quantity, "label": label}
        record |= {"variant": label, "options": {}, "status": "ok", "value": value, "elapsed": 0.1, "samples": [value]}
        record |= {"unit": UNITS.get(quantity, "flop" if quantity == "operations" else "fraction")}
        record |= fields
        cell = {key: record[key] for key in self.definition} | {
            "details": (record["details"] or {}).get("task_options")
        }
        record["cell"] = cell_id(quantity, cell)
        self.records.append(record)
        return record

    def speed(
        self,
        laws: dict[str, tuple[float, float]],
        lengths: list[int],
        rounds: int = 7,
        noise: float = 0.01,
        drift: float = 2.0,
        **fields: Any,
    ) -> Synthetic:
        """Times that follow their laws, each round slowed as a whole by up to `drift`, with noise of its own on each cell."""
        for length in lengths:
            for number in range(rounds):
                slowed = self.rng.uniform(1, drift)
                for label, (factor, exponent) in laws.items():
                    value = factor * length**exponent * slowed * math.exp(noise * self.rng.standard_normal())
                    self.add("speed", label, value, length=length, round=number, **fields)
        return self

    def counted(
        self, quantity: str, laws: dict[str, tuple[float, float]], lengths: list[int], **fields: Any
    ) -> Synthetic:
        for length in lengths:
            for label, (factor, exponent) in laws.items():
                self.add(quantity, label, float(round(factor * length**exponent)), length=length, **fields)
        return self

    def failed(
        self, label: str, length: int, status: str, reason: str, quantity: str = "speed", **fields: Any
    ) -> Synthetic:
        self.add(quantity, label, None, length=length, status=status, reason=reason, samples=None, **fields)
        return self

    def trained(
        self, task: str, values: dict[str, list[float]], baselines: dict[str, float], **fields: Any
    ) -> Synthetic:
        """Scores by label, one per seed; baselines by name."""
        options = fields.pop("task_options", {})
        common = {"task": task, "metric": "accuracy", "mode": None, "scope": "model", "length": 64} | fields
        for label, scores in values.items():
            for seed, value in enumerate(scores):
                curve = [
                    {
                        "step": step,
                        "train_loss": math.exp(-step / 300),
                        "validation": value * (1 - math.exp(-step / 200)),
                    }
                    | {"learning_rate": 1e-3, "seconds": step / 10, "operations": step * 1e9}
                    for step in range(100, 700, 100)
                ]
                details = {"task_options": options, "parameters": 100_000, "operations": 6e11, "seconds": 60.0 + seed}
                details |= {"by_slice": {"gap": {"4": [value * 90, 100], "32": [value * 60, 100]}}}
                self.add("accuracy", label, value, seed=seed, details=details, **common)
                self.add("curve", label, value, seed=seed, details={"task_options": options, "curve": curve}, **common)
        for name, value in baselines.items():
            self.add("baseline", name, value, variant=None, details={"task_options": options, "total": 1000}, **common)
        return self

    def write(self, path: Path, **spec: Any) -> Path:
        path.mkdir(parents=True, exist_ok=True)
        with open(path / "records.jsonl", "w", encoding="utf-8") as file:
            for record in self.records:
                file.write(json.dumps(record, allow_nan=False) + "\n")
        spec = {"name": path.name, "baseline": self.baseline} | spec
        lines = [f"{key} = {json.dumps(value)}" for key, value in spec.items()]
        (path / "spec.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (path / "environment.json").write_text(json.dumps(self.environment), encoding="utf-8")
        return path


def sweep(
    names: list[str] | None = None,
    lengths: list[int] | None = None,
    seed: int = 0,
    rounds: int = 7,
    modes: tuple[str, ...] = ("forward", "train_step"),
) -> Synthetic:
    """A whole sweep as one would make it: two modes, failures, floor, rates, accuracy on two tasks, controls and baselines."""
    names = NAMES if names is None else names
    lengths = lengths or [256, 512, 1024, 2048, 4096, 8192, 16384]
    run = Synthetic(seed)
    rng = np.random.default_rng(seed + 1)
    quadratic = {"full", "full-naive", "synthesizer"}
    laws, bytes_, flops = {}, {}, {}
    for index, name in enumerate(names):
        exponent = 2.0 if name in quadratic else 1.5 if name == "strided" else 1.0
        at_1k = 2e-3 * rng.uniform(0.6, 2.5) * (0.5 if name in ("none", "uniform") else 1)
        laws[name] = (at_1k / 1024**exponent, exponent)
        bytes_[name] = (2e6 * (1 + 0.35 * index) / 1024**exponent, exponent)
        flops[name] = (3e8 * rng.uniform(0.5, 2) / 1024**exponent, exponent)
        run.add("floor", name, 1.2e-4, length=4)
    for mode in modes:
        factor = 3.2 if mode == "train_step" else 1.0
        for name in names:
            if mode == "train_step":
                run.add("floor", name, 3e-4, length=4, mode=mode)
        scaled = {name: (a * factor, b) for name, (a, b) in laws.items()}
        alive = [name for name in names if name not in ("full-naive", "reformer")]
        run.speed({n: scaled[n] for n in alive}, lengths, rounds, 0.03, 1.1, mode=mode)
        run.counted("memory", {n: (bytes_[n][0] * factor, bytes_[n][1]) for n in alive}, lengths, mode=mode)
        run.counted("operations", {n: (flops[n][0] * factor, flops[n][1]) for n in alive}, lengths, mode=mode)
        for name, status in (("full-naive", "oom"), ("reformer", "timeout")):
            if name not in names:
                continue
            for quantity, law in (("speed", scaled), ("memory", bytes_), ("operations", flops)):
                short = [length for length in lengths if length < lengths[-2]]
                if quantity == "speed":
                    run.speed({name: law[name]}, short, rounds, 0.03, 1.1, mode=mode)
                else:
                    run.counted(quantity, {name: law[name]}, short, mode=mode)
                run.failed(
                    name, lengths[-2], status, f"{status} at {lengths[-2]}: limit 8 GB, 60 s", quantity, mode=mode
                )
                run.failed(name, lengths[-1], "skipped", f"ended in {status} at {lengths[-2]}", quantity, mode=mode)
    run.add("rate", None, 9e10, variant=None)
    skilled = [name for name in names if name not in ("none", "uniform")]
    tops = {name: max(0.2, 1.0 - 0.04 * index) for index, name in enumerate(skilled)} | {"none": 0.24, "uniform": 0.26}
    for task, options in (("mqar", {"pairs": 4}), ("mqar", {"pairs": 8}), ("code-tokens", {})):
        values = {
            name: [float(np.clip(tops[name] + 0.03 * rng.standard_normal(), 0, 1)) for _ in range(3)] for name in names
        }
        run.trained(
            task, values, {"constant": 0.05, "any value seen": 0.25}, causal=task == "mqar", task_options=options
        )
    run.environment["variants"] = {
        name: {
            "time": {
                "formula": "n^2 d" if name in quadratic else "n w d",
                "exponent": 2.0 if name in quadratic else 1.0,
            },
            "memory": {"formula": "n^2" if name in quadratic else "n d", "exponent": 2.0},
            "sequential": "n" if name == "recurrent" else "1",
            "path": "1" if name in quadratic else "n / w",
        }
        for name in names
    }
    return run
