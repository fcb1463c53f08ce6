"""A sweep that is killed at a random moment after its first measurement, if a seed is given, or else runs to its end."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import faulty  # noqa: F401 - registers the variants of the spec
import pretence

from attnbench.sweep import worker
from attnbench.sweep.runner import run
from attnbench.sweep.spec import parse_spec


def sweep_and_die(payload: dict[str, Any]) -> dict[str, Any]:
    if not payload["real"]:
        pretence.Instant.nap = payload["nap"]
        worker.Isolation = pretence.Instant  # type: ignore[misc, assignment]
    delay = None if payload["seed"] is None else random.Random(payload["seed"]).uniform(0, 10 * payload["nap"])

    def die() -> None:
        time.sleep(delay or 0)
        os.kill(os.getpid(), signal.SIGKILL)

    def progress(done: int, total: int, eta: float | None, current: str) -> None:
        if delay is not None and not started:
            started.append(True)
            threading.Thread(target=die, daemon=True).start()

    started: list[bool] = []
    summary = run(parse_spec(payload["spec"]), payload["out"], progress=progress)
    return {"status": "ok", "measured": summary.measured}
