"""A run, read from its directory: records as a frame, the spec and the environment as data."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pandas as pd

from attnbench.errors import UserError
from attnbench.sweep import records

__all__ = [
    "COST",
    "EXACT",
    "WORK",
    "Run",
    "complete_rounds",
    "last_outcomes",
    "load",
    "meanings",
    "rows_of",
    "same_machine",
    "usable_records",
]

# Two cells do equal work when these are equal; nothing else is ever compared.
WORK = ["scope", "mode", "causal", "device", "dtype", "batch", "length", "heads", "head_dim", "dim", "depth"]
COST = ("speed", "memory", "resident", "operations", "state")  # what one pays, in the order of the tables
EXACT = ("memory", "operations", "state")  # counted, not timed: one round tells all

_WHOLE = ["round", "seed", "batch", "length", "heads", "head_dim", "dim", "depth", "threads"]
_TEXT = [
    *("cell", "session", "quantity", "variant", "label", "code", "scope", "mode", "task", "metric", "device", "dtype"),
    *("status", "reason", "unit", "started", "host"),
]
# What may differ between two runs of one environment.
_VOLATILE = (
    "commit",
    "git",
    "load",
    "meanings",
    "rows_of",
    "time",
    "date",
    "started",
    "variants",
    "patterns",
    "pid",
    "dirty",
    "available",
    "free",
)


@dataclass(frozen=True)
class Run:
    """What a run directory holds. `frame` has one row per record and the records' columns."""

    frame: pd.DataFrame
    spec: dict[str, Any]
    environment: dict[str, Any]
    path: Path
    _usable: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        return str(self.spec.get("name") or self.path.resolve().name)

    @property
    def baseline(self) -> str:
        """The label that ratios refer to."""
        return str(self.spec.get("baseline") or "full")

    @property
    def capabilities(self) -> dict[str, dict[str, Any]]:
        """Declared capabilities by label, as the sweep stored them; empty where it did not."""
        found = self.environment.get("variants")
        return found if isinstance(found, dict) else {}

    def of(self, quantity: str) -> pd.DataFrame:
        """The records of one quantity."""
        return self.frame[self.frame["quantity"] == quantity]

    def usable(self, quantity: str) -> pd.DataFrame:
        """The records of one quantity that count: see `usable_records`, and for what is timed `complete_rounds`."""
        if quantity not in self._usable:
            records = self.of(quantity)
            self._usable[quantity] = complete_rounds(records) if quantity == "speed" else usable_records(records)
        return self._usable[quantity]

    def positive(self, quantity: str) -> pd.DataFrame:
        """The usable records whose value has a logarithm, and may stand below a ratio."""
        usable = self.usable(quantity)
        return usable[usable["value"] > 0]


def load(path: str | Path, *more: str | Path) -> Run:
    """Reads a run directory; several are read as one run (say, one that timed and one that trained).

    Raises:
        UserError: a directory holds no run, a file in it is damaged, a label means different things in two runs, or their
            environments differ.
    """
    first, *others = [_load(Path(item)) for item in (path, *more)]
    if not others:
        return first
    for other in others:
        _check_mergeable(first, other)
    frame = pd.concat([first.frame, *(other.frame for other in others)], ignore_index=True)
    capabilities: dict[str, Any] = {}
    for run in (first, *others):
        capabilities |= run.capabilities
    return Run(frame, first.spec, first.environment | {"variants": capabilities}, first.path)


def _load(path: Path) -> Run:
    file = path / records.FILE
    if not file.is_file():
        raise UserError(f"{path}: no run here: a directory that holds {records.FILE} is expected")
    rows = list(records.read(file))
    return Run(_typed(rows), _spec(path / "spec.toml"), _environment(path / "environment.json"), path)


def _typed(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(records.COLUMNS), dtype=object)
    for column in _WHOLE:
        frame[column] = pd.to_numeric(frame[column]).astype("Int64")
    for column in _TEXT:
        frame[column] = frame[column].astype("string")
    for column in ("value", "elapsed"):
        frame[column] = pd.to_numeric(frame[column]).astype(float)
    frame["causal"] = frame["causal"].astype("boolean")
    return frame


def _spec(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: not TOML: {error}") from None


def _environment(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{file}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{file}: an object is expected, received {type(value).__name__}")
    return value


def _check_mergeable(first: Run, other: Run) -> None:
    differences = same_machine(first.environment, other.environment)
    if differences:
        raise UserError(f"{first.path} and {other.path} come from different environments: {'; '.join(differences)}")
    means = meanings(first)
    for label, meaning in meanings(other).items():
        if means.get(label, meaning) != meaning:
            raise UserError(f"label {label!r} is {means[label]} in {first.path} and {meaning} in {other.path}")


def meanings(run: Run) -> dict[str, str]:
    seen = run.frame.dropna(subset=["variant"]).drop_duplicates("label")
    return {row["label"]: f"{row['variant']} {records.canonical(row['options'] or {})}" for row in rows_of(seen)}


def same_machine(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """What differs between two environments, less what changes from minute to minute or is the point of comparing."""
    keys = sorted(key for key in a.keys() | b.keys() if not any(word in key.lower() for word in _VOLATILE))
    return [f"{key} {a.get(key)!r} and {b.get(key)!r}" for key in keys if a.get(key) != b.get(key)]


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame as dicts by column name."""
    return cast("list[dict[str, Any]]", frame.to_dict("records"))


def last_outcomes(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per cell: its last record, which says how the cell ended."""
    return frame.drop_duplicates("cell", keep="last")


def usable_records(frame: pd.DataFrame) -> pd.DataFrame:
    """The records that count: ok, and of cells that ended ok. A cell that failed in a later round carries no number."""
    ended = last_outcomes(frame)
    ended_ok = ended["cell"][ended["status"] == "ok"]
    return frame[(frame["status"] == "ok") & frame["cell"].isin(ended_ok)]


def complete_rounds(frame: pd.DataFrame) -> pd.DataFrame:
    """The usable records of rounds that measured every usable cell of their comparison group.

    An interrupted round is measured again whole by the sweep, so what it left behind is of no use to a paired ratio.
    """
    usable = usable_records(frame)
    group = usable.groupby(["quantity", *WORK], dropna=False, sort=False).ngroup()
    wanted = usable.groupby(group)["cell"].transform("nunique")
    present = usable.groupby([group, usable["session"], usable["round"]], dropna=False)["cell"].transform("nunique")
    return usable[present == wanted]
