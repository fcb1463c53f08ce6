"""What is done and what is left: the plan held against the records."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.sweep.cells import Cell, Group, Plan

__all__ = ["Ledger", "Turn"]


@dataclass(frozen=True)
class Turn:
    """One round of one comparison group."""

    group: Group
    round: int


class Ledger:
    """Keeps account of a sweep, from the records of earlier sessions and of this one.

    A cell that failed is not measured again. A round that was interrupted is measured again whole, since ratios are taken
    within a round of one session. A cell is too long where an equal one ran out of memory or time at a shorter length.
    """

    def __init__(self, plan: Plan, records: Iterable[Mapping[str, Any]]) -> None:
        self.plan = plan
        self.outcomes: dict[str, str] = {}  # cell -> status of its last record
        self._cells = {cell.id: cell for cell in plan.cells}
        self._measured: dict[tuple[str, int], set[str]] = defaultdict(set)  # (session, round) -> cells that are ok
        self._by_round: dict[int, set[str]] = defaultdict(set)  # round -> sessions
        self._ok: set[str] = set()
        self._values: dict[str, Any] = {}
        self._limits: dict[
            str, tuple[int, str]
        ] = {}  # chain -> shortest length that exhausted time or memory, and which
        for record in records:
            self.note(record)

    def note(self, record: Mapping[str, Any]) -> None:
        """Takes a record into account."""
        identity, status = record["cell"], record["status"]
        self.outcomes[identity] = status
        if status == "ok":
            key = (record["session"], record["round"])
            self._measured[key].add(identity)
            self._by_round[record["round"]].add(record["session"])
            self._ok.add(identity)
            self._values[identity] = record.get("value")
        cell = self._cells.get(identity)
        if cell is not None and status in ("oom", "timeout"):
            length = cell.definition.get("length") or 0
            known, _ = self._limits.get(cell.chain, (length, ""))
            if length <= known:
                self._limits[cell.chain] = (length, status)

    def turns(self) -> Iterator[Turn]:
        """All turns in the order of measurement: what takes one round, then the rounds of what is repeated, then trainings."""
        exclusive = [group for group in self.plan.groups if group.exclusive]
        yield from (Turn(group, 1) for group in exclusive if group.rounds == 1)
        repeated = [group for group in exclusive if group.rounds > 1]
        for round_ in range(1, max((group.rounds for group in repeated), default=0) + 1):
            yield from (Turn(group, round_) for group in repeated if round_ <= group.rounds)
        trained = [group for group in self.plan.groups if not group.exclusive]
        for last in (False, True):  # what is scored comes after what its learning rate depends on
            yield from (Turn(group, 1) for group in trained if group.scored is last)

    def left(self, turn: Turn) -> list[Cell]:
        """The cells that this turn has still to measure, in the turn's own shuffled order; none where it is complete."""
        alive = [cell for cell in turn.group.cells if not self.failed(cell)]
        if turn.group.rounds == 1:
            alive = [cell for cell in alive if cell.id not in self._ok]
        elif any(
            all(cell.id in self._measured[session, turn.round] for cell in alive)
            for session in self._by_round[turn.round]
        ):
            return []
        random.Random(f"{self.plan.spec.seed} {turn.group.key} {turn.round}").shuffle(alive)
        return alive

    def failed(self, cell: Cell) -> bool:
        """Whether it ended otherwise than ok."""
        return self.outcomes.get(cell.id, "ok") != "ok"

    def too_long(self, cell: Cell) -> str | None:
        """Why a cell that was never measured is not worth trying; None where it is."""
        if cell.id in self._ok or cell.chain not in self._limits:
            return None
        length, status = self._limits[cell.chain]
        if length >= (cell.definition.get("length") or 0):
            return None
        return f"longer than {length}, where it {'ran out of memory' if status == 'oom' else 'exceeded the time limit'}"

    def learning_rate(self, cell: Cell) -> float | None:
        """What was chosen for a cell that leaves its learning rate to another; None where it does not."""
        return None if cell.after is None else self._values[cell.after]

    def untuned(self, cell: Cell) -> str | None:
        """How the choice of its learning rate failed, as a status; None where it did not."""
        return None if cell.after is None or cell.after in self._values else self.outcomes[cell.after]

    def recorded(self, record: Mapping[str, Any]) -> bool:
        """Whether a further record of a job (a curve, a baseline) is there, from a session that died before the job's own."""
        return record["cell"] not in self._cells and record["cell"] in self.outcomes

    def counts(self) -> dict[str, int]:
        """How many cells of the plan ended in each status."""
        ended = (self.outcomes[identity] for identity in self._cells if identity in self.outcomes)
        return dict(Counter(ended).most_common())
