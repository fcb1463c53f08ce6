"""The run directory: locked by one sweep at a time, and bound to one spec, one environment and one version of the code."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from attnbench.errors import UserError
from attnbench.measure import environment, usable_cores
from attnbench.sweep import records
from attnbench.sweep.cells import Plan
from attnbench.sweep.grid import shown

__all__ = ["RunDirectory", "opened"]

SPEC, ENVIRONMENT, LOCK = "spec.toml", "environment.json", ".lock"
OURS = (SPEC, ENVIRONMENT, records.FILE, "patterns.npz", "report.html", "tables", "plots", "checkpoints")
VOLATILE = (
    "git_commit",
    "git_dirty",
    "load_average",
    "variants",
    "nodes",
)  # what may differ between sessions of one run


class RunDirectory:
    """An open run directory: reads the records it holds, and appends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = path / records.FILE
        self.checkpoints = path / "checkpoints"

    def read(self) -> list[dict[str, Any]]:
        """All records so far. Raises RecordsError, naming the line, where one is damaged."""
        return list(records.read(self.records)) if self.records.exists() else []

    def add_node(self, host: str, node: str, surroundings: Mapping[str, Any]) -> None:
        """Puts the environment of a cluster's node beside this machine's."""
        found = json.loads((self.path / ENVIRONMENT).read_text(encoding="utf-8"))
        found.setdefault("nodes", {})[f"{host} {node[:8]}"] = dict(surroundings)
        _write(self.path / ENVIRONMENT, _as_json(found))

    def append(self, record: Mapping[str, Any]) -> None:
        """Writes one record. Raises UserError where the disk does not take it; what is there stays whole."""
        try:
            records.append(self.records, record)
        except OSError as error:
            raise UserError(
                f"{self.records}: {error.strerror}; what was measured so far is kept: mend that, and the same command goes on"
            ) from error


@contextmanager
def opened(plan: Plan, path: Path, *, fresh: bool = False, here: bool = True) -> Iterator[RunDirectory]:
    """The run directory of a plan, locked for as long as the block runs.

    Raises UserError, having touched nothing, where the directory is in use, holds something else, or belongs to a run with
    another spec, environment or code; `fresh` discards the run that it holds.
    """
    surroundings = _environment(plan, here)
    _check(plan, path, surroundings, fresh)
    with _locked(path):
        _check(plan, path, surroundings, fresh)  # again, now that nobody else writes to it
        try:
            if fresh:
                _clear(path)
            _begin(plan, path, surroundings)
        except OSError as error:
            raise UserError(f"{path}: {error.strerror or error}") from error
        yield RunDirectory(path)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    lock = filelock.FileLock(path / LOCK, timeout=0)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout:
        raise UserError(f"{path}: another sweep is writing to this directory; wait for it, or choose another") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def _environment(plan: Plan, here: bool) -> dict[str, Any]:
    """This machine's, as the devices of the spec see it; measured elsewhere, what it is here beside the devices."""
    spec = plan.spec
    first, *others = spec.devices if here else ["cpu"]
    found = environment(first)
    if others:
        found["accelerators"] = {device: environment(device)["accelerator"] for device in spec.devices}
    return found | {"threads": spec.threads or usable_cores(), "variants": plan.capabilities}


def _check(plan: Plan, path: Path, surroundings: Mapping[str, Any], fresh: bool) -> None:
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: not a directory")
    if not path.exists():
        return
    foreign = sorted(entry.name for entry in path.iterdir() if entry.name not in OURS and entry.name[0] != ".")
    if foreign and not (path / SPEC).exists():
        raise UserError(f"{path}: not a run directory: it holds {foreign[0]!r}; choose a new or empty one")
    if fresh or not (path / SPEC).exists():
        return
    _check_spec(plan, path)
    _check_environment(path, surroundings)
    _check_code(plan, RunDirectory(path).read(), path)


def _check_spec(plan: Plan, path: Path) -> None:
    try:
        there = tomllib.loads((path / SPEC).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path / SPEC}: not TOML: {error}") from None
    _compare(path, "spec", there, tomllib.loads(plan.spec.toml()))


def _check_environment(path: Path, surroundings: Mapping[str, Any]) -> None:
    try:
        there = json.loads((path / ENVIRONMENT).read_text(encoding="utf-8"))
    except (ValueError, FileNotFoundError) as error:
        raise UserError(f"{path / ENVIRONMENT}: not readable: {error}; start over with --fresh") from None
    here = json.loads(json.dumps(surroundings))
    stable = [{key: value for key, value in side.items() if key not in VOLATILE} for side in (there, here)]
    _compare(path, "environment", stable[0], stable[1])


def _check_code(plan: Plan, written: Iterable[Mapping[str, Any]], path: Path) -> None:
    there = {record["label"]: record["code"] for record in written if record["code"]}
    here = {cell.definition["label"]: cell.code for cell in plan.cells if cell.code}
    _compare(path, "code", there, {label: here.get(label) for label in there})


def _compare(path: Path, what: str, there: Mapping[str, Any], here: Mapping[str, Any], key: str = "") -> None:
    """Raises UserError at the first key that differs."""
    for name in sorted(there.keys() | here.keys()):
        before, now = there.get(name), here.get(name)
        if before == now:
            continue
        if isinstance(before, dict) and isinstance(now, dict):
            _compare(path, what, before, now, f"{key}{name}.")
        raise UserError(
            f"{path}: holds a run with another {what}: {key}{name} is {shown(before)} there and {shown(now)} here; "
            "choose another directory, or start over with --fresh"
        )


def _clear(path: Path) -> None:
    """Removes what a sweep and its report wrote, and nothing else."""
    for name in (records.FILE, *OURS):
        entry = path / name
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)


def _begin(plan: Plan, path: Path, surroundings: Mapping[str, Any]) -> None:
    """Writes the environment and, last of all, the spec, whose presence says that a run began here."""
    if not (path / SPEC).exists():
        _write(path / ENVIRONMENT, _as_json(surroundings))
        _write(path / SPEC, plan.spec.toml())


def _as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> None:
    """Writes a file so that it is there whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    with open(part, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
