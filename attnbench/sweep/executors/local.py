"""This machine: what is timed runs alone, trainings may run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from attnbench.sweep.worker import Worker

__all__ = ["execute"]


def execute(sweep: Any, worker: Worker, *, jobs: int = 1) -> Iterator[list[dict[str, Any]]]:
    """Yields the records of each job as soon as they are there. What still runs when the worker is closed is killed."""
    turns = list(sweep.turns())
    for turn in turns:
        if turn.group.exclusive:
            for job in sweep.begin(turn):
                sweep.announce(job)
                yield worker.measure(job)
    side_by_side = [job for turn in turns if not turn.group.exclusive for job in sweep.begin(turn)]
    yield from _trained(sweep, worker, side_by_side, jobs)


def _trained(
    sweep: Any, worker: Worker, side_by_side: list[dict[str, Any]], jobs: int
) -> Iterator[list[dict[str, Any]]]:
    def measure(job: dict[str, Any]) -> list[dict[str, Any]]:
        sweep.announce(job)
        return worker.measure(job)

    pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="attnbench-training")
    try:
        for future in as_completed([pool.submit(measure, job) for job in side_by_side]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
