"""Runs a plan to its end: what is left is measured, every record is on the disk before the next cell begins."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench.errors import UserError, nearest
from attnbench.measure import usable_cores
from attnbench.sweep.cells import Cell, Plan
from attnbench.sweep.directory import RunDirectory, opened
from attnbench.sweep.jobs import job
from attnbench.sweep.ledger import Ledger, Turn
from attnbench.sweep.patterns import draw_patterns
from attnbench.sweep.planner import plan as make_plan
from attnbench.sweep.spec import Spec
from attnbench.sweep.worker import Worker, unmeasured

__all__ = ["EXECUTORS", "Progress", "Summary", "run"]

EXECUTORS = ("local", "ray")
Progress = Callable[[int, int, float | None, str], None]


@dataclass(frozen=True)
class Summary:
    """What came of a sweep: its directory, how many measurements this session took, how many cells ended in each status."""

    path: Path
    measured: int
    outcomes: Mapping[str, int] = field(default_factory=dict)


def run(
    spec: Spec,
    out: str | Path,
    *,
    executor: str = "local",
    address: str | None = None,
    jobs: int = 1,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Summary:
    """Measures all that a spec asks for and the run directory `out` does not hold yet.

    Args:
        executor: "local", or "ray" for the cluster at `address`.
        jobs: trainings at a time on one machine, one thread each; what is timed never runs beside anything.
        fresh: discard the run that the directory holds.
        progress: called with measurements done, all of them, seconds left (None: not known yet), and what runs now.

    Raises:
        UserError: the spec asks for what does not exist; the directory is in use, or belongs to another spec, environment or
            code; the disk is full.
        KeyboardInterrupt: passed on after every child is gone; the same call goes on later.
    """
    if executor not in EXECUTORS:
        raise UserError(f"unknown executor {executor!r}{nearest(executor, EXECUTORS)}; valid: {', '.join(EXECUTORS)}")
    here = executor == "local"
    planned = make_plan(spec, here=here)
    with opened(planned, Path(out), fresh=fresh, here=here) as directory, Worker() as worker:
        sweep = _Sweep(planned, directory, jobs, progress)
        for records in _execute(sweep, worker, executor, address, jobs):
            sweep.keep(records)
        draw_patterns(planned, directory.path, worker.isolation)
        return Summary(directory.path, sweep.measured, sweep.ledger.counts())


def _execute(
    sweep: _Sweep, worker: Worker, executor: str, address: str | None, jobs: int
) -> Iterator[list[dict[str, Any]]]:
    if executor == "ray":
        from attnbench.sweep.executors import ray

        return ray.execute(sweep, address=address, jobs=jobs)
    from attnbench.sweep.executors import local

    return local.execute(sweep, worker, jobs=jobs)


class _Sweep:
    """What an executor sees of a sweep: the turns to take, and the jobs of each at the moment it begins."""

    def __init__(self, plan: Plan, directory: RunDirectory, jobs: int, progress: Progress | None) -> None:
        self.plan, self.directory = plan, directory
        self.ledger = Ledger(plan, directory.read())
        self.session = uuid.uuid4().hex[:12]
        self.measured = 0
        self._jobs = jobs
        self._meter = _Meter(self.ledger, jobs, progress)

    def turns(self) -> Iterator[Turn]:
        """The turns of the plan in order; many may have nothing left to measure."""
        return self.ledger.turns()

    def begin(self, turn: Turn, cores: int | None = None) -> list[dict[str, Any]]:
        """The jobs of a turn, in the order of their measurement; what is not worth measuring is recorded as such.

        cores: usable ones of the machine that measures; by default this one's.
        """
        threads = (
            1 if self._jobs > 1 and not turn.group.exclusive else self.plan.spec.threads or cores or usable_cores()
        )
        jobs = []
        for cell in self.ledger.left(turn):
            reason, untuned = self.ledger.too_long(cell), self.ledger.untuned(cell)
            if cell.refusals:
                self._record_unmeasured(cell, turn, "unsupported", "; ".join(cell.refusals))
            elif reason is not None:
                self._record_unmeasured(cell, turn, "skipped", reason)
            elif untuned is not None:
                self._record_unmeasured(
                    cell, turn, "skipped", f"no learning rate was chosen: the search ended in {untuned}"
                )
            else:
                jobs.append(
                    job(
                        self.plan.spec,
                        cell,
                        session=self.session,
                        round_=turn.round,
                        threads=threads,
                        checkpoints=self.directory.checkpoints,
                        learning_rate=self.ledger.learning_rate(cell),
                    )
                )
        return jobs

    def announce(self, job: Mapping[str, Any]) -> None:
        """Says what is measured now."""
        self._meter.show(job["name"])

    def keep(self, records: list[dict[str, Any]]) -> None:
        """Puts the records of one job on the disk."""
        for record in records:
            if not self.ledger.recorded(record):
                self.directory.append(record)
                self.ledger.note(record)
        self.measured += 1
        self._meter.advance(records[-1])

    def _record_unmeasured(self, cell: Cell, turn: Turn, status: str, reason: str) -> None:
        columns = cell.columns | {"session": self.session, "round": turn.round}
        self.keep([unmeasured(cell.definition, columns, status, reason)])
        self.measured -= 1


class _Meter:
    """Measurements done and left, and the time that they will take, by the pace of each quantity so far."""

    def __init__(self, ledger: Ledger, jobs: int, progress: Progress | None) -> None:
        self._progress = progress
        self._ledger = ledger
        self._jobs = jobs
        self._left = {
            (cell.id, turn.round): (cell, turn.group) for turn in ledger.turns() for cell in ledger.left(turn)
        }
        self._total = sum(len(turn.group.cells) for turn in ledger.turns())
        self._took: dict[str, list[float]] = {}  # by quantity: seconds measured, seconds estimated
        self._current = "starting"
        self.show(self._current)

    def advance(self, record: Mapping[str, Any]) -> None:
        key = (record["cell"], record["round"])
        if key not in self._left:
            return
        cell, _ = self._left.pop(key)
        if record.get("elapsed"):
            took = self._took.setdefault(record["quantity"], [0.0, 0.0])
            took[0] += record["elapsed"]
            took[1] += cell.estimate
        if record["status"] != "ok":  # later rounds will not take place
            for other in [other for other in self._left if other[0] == key[0]]:
                del self._left[other]
        self.show(self._current)

    def show(self, current: str) -> None:
        self._current = current
        if self._progress is not None:
            self._progress(self._total - len(self._left), self._total, self._eta(), current)

    def _eta(self) -> float | None:
        if not self._took:
            return None
        seconds = 0.0
        for cell, group in self._left.values():
            took, estimated = self._took.get(cell.columns["quantity"], (1.0, 1.0))
            pace = took / estimated if estimated else 1.0
            seconds += pace * cell.estimate / (1 if group.exclusive else self._jobs)
        return seconds
