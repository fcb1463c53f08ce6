"""What a plan is made of: cells, the groups in which they are compared, and what each needs to be measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from attnbench.sweep.records import COLUMNS, canonical, cell_id
from attnbench.sweep.spec import Spec

__all__ = ["Cell", "Group", "Plan"]

BY_LABEL = ("label", "variant", "options")


@dataclass(frozen=True)
class Cell:
    """One thing to measure.

    definition: all that defines it, the record's columns among it; its canonical JSON is hashed into `id`.
    code: hash of the variant's source. module: where the variant is defined, for the process that measures it.
    refusals: every reason why it is unsupported; empty where it is not.
    estimate: seconds that one measurement of it may take.
    after: the cell that chooses its learning rate; None where there is no choice.
    """

    definition: dict[str, Any]
    code: str | None = None
    module: str | None = None
    refusals: tuple[str, ...] = ()
    estimate: float = 1.0
    after: str | None = None

    @cached_property
    def id(self) -> str:
        definition = {key: value for key, value in self.definition.items() if key != "quantity"}
        return cell_id(self.quantity, definition)

    @property
    def quantity(self) -> str:
        return str(self.definition["quantity"])

    @cached_property
    def group(self) -> str:
        """The comparison group: equal work by different labels."""
        return canonical({key: value for key, value in self.definition.items() if key not in BY_LABEL})

    @cached_property
    def chain(self) -> str:
        """The cells that differ in nothing but the length."""
        return canonical({key: value for key, value in self.definition.items() if key != "length"})

    @property
    def name(self) -> str:
        """What a progress bar calls it."""
        parts = ("quantity", "label", "task", "mode", "length", "dtype", "device", "seed")
        return " ".join(str(self.definition[part]) for part in parts if self.definition.get(part) is not None)

    @property
    def columns(self) -> dict[str, Any]:
        """The columns of its records that it defines."""
        return {key: value for key, value in self.definition.items() if key in COLUMNS} | {
            "cell": self.id,
            "code": self.code,
        }


@dataclass(frozen=True)
class Group:
    """Cells that are compared with each other: all of one quantity at one length, mode, dtype and device.

    They are measured `rounds` times over; nothing may run beside a group that is `exclusive`.
    """

    cells: Sequence[Cell]
    rounds: int
    exclusive: bool

    @property
    def length(self) -> int:
        return int(self.cells[0].definition.get("length") or 0)

    @property
    def scored(self) -> bool:
        """Whether these are trainings whose scores count; what they depend on comes before them."""
        return self.cells[0].quantity == "accuracy"

    @property
    def key(self) -> str:
        return self.cells[0].group


@dataclass(frozen=True)
class Plan:
    """All that a spec asks for, in the order of measurement."""

    spec: Spec
    groups: Sequence[Group]
    capabilities: dict[str, dict[str, Any]] = field(default_factory=dict)  # by label

    @cached_property
    def cells(self) -> list[Cell]:
        return [cell for group in self.groups for cell in group.cells]

    def estimate(self, jobs: int = 1) -> float:
        """Seconds that the whole sweep may take with so many trainings at a time; an order of magnitude."""
        return math.fsum(
            cell.estimate * group.rounds / (1 if group.exclusive else jobs)
            for group in self.groups
            for cell in group.cells
            if not cell.refusals
        )
