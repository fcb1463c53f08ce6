"""A worker: on one machine, one job after the other becomes records, each in a process of its own and behind the gate."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attnbench.sweep.isolation import Isolation
from attnbench.sweep.records import COLUMNS, canonical, cell_id

__all__ = ["Worker", "unmeasured"]


class Worker:
    """Measures jobs. Thread-safe; a context manager, at whose end everything that still runs is killed."""

    def __init__(self) -> None:
        self.isolation = Isolation()
        self._gates: dict[str, dict[str, Any]] = {}
        self._gating = threading.Lock()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.isolation.close()

    def measure(self, job: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The records of a job, the one that the plan names last."""
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        outcome = self._refusal(job) or self.isolation.call(job["target"], job["payload"], **job["limits"])
        common = {
            "started": started,
            "elapsed": outcome["elapsed"],
            "host": socket.gethostname(),
            "threads": outcome.get("threads", job["limits"]["threads"]),
        }
        rows = outcome.get("rows") or [{"status": outcome["status"], "reason": outcome["reason"]}]
        return [_record(job, row, common) for row in rows]

    def _refusal(self, job: Mapping[str, Any]) -> dict[str, Any] | None:
        """Why the gate lets no measurement through; None where it does. It is asked once for all that rely on the same."""
        if job["gate"] is None:
            return None
        key = canonical(job["gate"])
        with self._gating:
            if key not in self._gates:
                self._gates[key] = self.isolation.call("attnbench.sweep.work:check", job["gate"], **job["gate_limits"])
            outcome = self._gates[key]
        if outcome["status"] == "ok":
            return None
        where = "" if outcome["status"] == "incorrect" else "in the gate: "
        return {"status": outcome["status"], "reason": where + outcome["reason"], "elapsed": outcome["elapsed"]}


def unmeasured(definition: Mapping[str, Any], columns: Mapping[str, Any], status: str, reason: str) -> dict[str, Any]:
    """The record of a cell that is not measured at all."""
    started = datetime.now(UTC).isoformat(timespec="milliseconds")
    told = {"status": status, "reason": reason, "started": started, "host": socket.gethostname()}
    return {**columns, **told, "details": _beside(definition) or None}


def _record(job: Mapping[str, Any], row: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    """A whole record; where the row speaks of another quantity or label than the job, it is a cell of its own."""
    definition = job["definition"]
    own = {key: row[key] for key in ("quantity", "label") if key in row}
    if own:
        changed = definition | own
        own["cell"] = cell_id(changed.pop("quantity"), changed)
    details = _beside(definition) | dict(row.get("details") or {})
    return {"status": "ok", **job["columns"], **common, **row, **own, "details": details or None}


def _beside(definition: Mapping[str, Any]) -> dict[str, Any]:
    """What defines a cell and has no column of its own."""
    return {key: value for key, value in definition.items() if key not in COLUMNS}
