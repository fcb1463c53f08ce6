"""Records: one line of strict JSON per measurement, appended and fsynced, and never rewritten. Imports no torch.

The column names are public. A record describes one cell in one round of one session.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnbench.errors import UserError

__all__ = ["COLUMNS", "QUANTITIES", "SCHEMA", "STATUSES", "RecordsError", "append", "canonical", "cell_id", "read"]

SCHEMA = 1
FILE = "records.jsonl"

QUANTITIES = {  # quantity -> the letter that begins its cells' names
    "speed": "s",
    "memory": "m",
    "resident": "r",
    "operations": "o",
    "accuracy": "a",
    "curve": "l",
    "baseline": "b",
    "state": "d",
    "compile": "c",
    "floor": "f",
    "rate": "p",
    "tuning": "t",
}
STATUSES = ("ok", "unsupported", "incorrect", "oom", "timeout", "error", "skipped")

COLUMNS = (
    "schema",  # version of this layout
    "cell",  # a letter and a hash of everything that defines the cell
    "session",  # one invocation of the sweep
    "round",  # ratios are taken within one round of one session
    "quantity",
    "variant",  # registry name
    "label",  # what tables and plots call it; unique in a spec
    "options",  # the variant's own options, as given
    "code",  # hash of the variant's source
    "scope",  # attention | model
    "mode",  # forward | backward | train_step | decode
    "causal",
    "task",
    "metric",
    "seed",
    "device",
    "dtype",
    "batch",
    "length",
    "heads",
    "head_dim",
    "dim",
    "depth",
    "status",
    "reason",  # why the status is not ok
    "value",  # median of the samples, or the one value there is; null unless ok
    "unit",  # s | bytes | flop | fraction | ...
    "samples",  # raw samples of this round
    "started",  # UTC, ISO 8601
    "elapsed",  # seconds that the cell took, all in all
    "host",
    "threads",
    "details",  # what only one quantity has
)


class RecordsError(UserError):
    """A records file that cannot be trusted: the message names the file, the line and what is wrong with it."""


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def cell_id(quantity: str, definition: Mapping[str, Any]) -> str:
    """The name of a cell: the quantity's letter and a hash of the canonical JSON of all that defines it."""
    digest = hashlib.sha256(canonical({"quantity": quantity, **definition}).encode()).hexdigest()
    return QUANTITIES[quantity] + digest[:15]


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Appends one record as one line and forces it to the disk; columns not given are null.

    A torn last line (a kill or a full disk in mid-write) is cut off first: what it held was never a record.

    Raises:
        KeyError: a column that no record has.
        ValueError: a value that strict JSON cannot hold, such as NaN.
    """
    unknown = set(record) - set(COLUMNS)
    if unknown:
        raise KeyError(f"not a record's column: {sorted(unknown)}; valid columns: {', '.join(COLUMNS)}")
    line = json.dumps(
        {column: SCHEMA if column == "schema" else record.get(column) for column in COLUMNS},
        separators=(",", ":"),
        allow_nan=False,
        ensure_ascii=False,
    )
    with open(path, "ab+", buffering=0) as file:  # no buffer that would be flushed once more after an error
        _cut_torn_line(file)
        start = file.seek(0, os.SEEK_END)
        rest = memoryview(line.encode() + b"\n")
        try:
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(file.fileno())
        except OSError:  # a full disk: leave whole lines behind, and let the sweep stop and say so
            file.truncate(start)
            raise


def _cut_torn_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    position = end
    while position > 0:
        step = min(4096, position)
        file.seek(position - step)
        found = file.read(step).rfind(b"\n")
        if found >= 0:
            file.truncate(position - step + found + 1)
            return
        position -= step
    file.truncate(0)


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The records of a file in order; a torn last line is passed over.

    Raises:
        RecordsError: a line in the middle is damaged, or was written by a newer schema; the line is named.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                record = _DECODER.decode(line.decode())
            except ValueError as error:
                raise RecordsError(f"{path}:{number}: not a record: {error}") from None
            if not isinstance(record, dict) or not isinstance(record.get("schema"), int):
                raise RecordsError(f"{path}:{number}: not a record: an object with a schema is expected")
            if record["schema"] > SCHEMA:
                raise RecordsError(
                    f"{path}:{number}: written by schema {record['schema']}, newer than the {SCHEMA} this version reads"
                )
            yield record


def _refuse_constant(token: str) -> None:
    raise ValueError(f"{token} is not strict JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)  # made once: json.loads would make one a line
