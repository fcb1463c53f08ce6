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
    for scored in (False, True):  # what is scored depends on what was chosen before
        trained = [turn for turn in turns if not turn.group.exclusive and turn.group.scored is scored]
        yield from _side_by_side(sweep, worker, [job for turn in trained for job in sweep.begin(turn)], jobs)


def _side_by_side(
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
